"""Surgery on a given network: normalisation, layer lookup, mirror images, copies."""
