#!/bin/sh
# CATTAn in TTAB, in its own naming: run from TTAB's folder; further options of TTAB may follow, KEY VALUE pairs last.
exec python -m tta_cattan.host run_exp.py \
    --model_adaptation_method cattan --model_selection_method last_iterate \
    --base_data_name cifar10 --data_names cifar10_c_deterministic-gaussian_noise-5 \
    --data_wise batch_wise --batch_size 64 --lr 1e-3 "$@" \
    CATTAN.D 32 CATTAN.SOURCE_BASIS classifier
