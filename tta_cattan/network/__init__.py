"""Surgery on a given network: normalisation, finding layers, input transformation, copies."""
