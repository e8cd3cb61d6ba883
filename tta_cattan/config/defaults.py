"""Every configuration key with its default, its meaning, its choices and where it comes from."""

from __future__ import annotations

from yacs.config import CfgNode

# In TENT's order, which is the order of the columns in the published tables.
CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)

# Origin in brackets: [TENT] keeps TENT's name, meaning and default; [ours] is new. Ranges are in checks.py.
_C = CfgNode(
    {
        "MODEL": {
            "ARCH": "Standard",  # architecture, by its name in the model zoo [TENT]
            "ADAPTATION": "source",  # adaptation method, by its registered name [TENT]
            "EPISODIC": False,  # reset the model before each batch [TENT]
            "CKPT_PATH": "",  # local checkpoint; '' = the one that belongs to ARCH [ours]
            "CLASSIFIER": "",  # dotted name of the final linear layer; '' = found [ours]
            "IN_FEATURES": 768,  # length of the feature vectors that 'feature_mlp' takes; 768 = ViT-B's [ours]
            "WIDTH": 512,  # width of the layer with batch normalisation in 'feature_mlp' [ours]
        },
        "CORRUPTION": {
            "DATASET": "cifar10",  # benchmark, by its registered name [TENT]
            "TYPE": list(CORRUPTIONS),  # corruptions, in the order of evaluation [TENT]
            "SEVERITY": [5, 4, 3, 2, 1],  # severities, in the order of evaluation; 0 = clean [TENT; 0 is ours]
            # samples per domain; -1 = all: the first where the data has an order of its own (CIFAR-C, ImageNet-C), else
            # equally many per class, drawn by the seed [TENT; -1 and the draw are ours]
            "NUM_EX": 10000,
        },
        "BN": {
            "EPS": 1e-5,  # accepted and unused, as in TENT [TENT]
            "MOM": 0.1,  # momentum of the running statistics in mode 'running'; TENT reads it nowhere [TENT]
            # 'batch' = statistics of the current batch (TENT); 'source' = the source model's running statistics;
            # 'running' = batch statistics while adapting with the running ones updated, the running ones when
            # predicting (authors' code); 'blend' = between the source's and the batch's, nearer to the batch's the
            # further it is from the source; 'auto' = 'blend' for CATTAn+, else 'batch' [ours]
            "STATISTICS": "auto",
            # divergence between the two at which 'blend' is halfway; larger = nearer to the source's [ours]
            "BLEND": 0.05,
        },
        "OPTIM": {
            "STEPS": 1,  # updates per batch [TENT]
            "LR": 1e-3,  # learning rate [TENT]
            "METHOD": "Adam",  # 'Adam', 'AdamW' or 'SGD' [TENT; 'AdamW' is ours]
            "BETA": 0.9,  # first beta of Adam and AdamW [TENT]
            "MOMENTUM": 0.9,  # momentum of SGD [TENT]
            "DAMPENING": 0.0,  # dampening of SGD's momentum [TENT]
            "NESTEROV": True,  # Nesterov momentum in SGD [TENT]
            "WD": 0.0,  # weight decay; the authors' code has 5e-4 [TENT]
        },
        "TEST": {
            "BATCH_SIZE": 128,  # images per batch, for adaptation and evaluation [TENT]
            # 'online' = TENT's one pass; 'offline' = the paper's epochs, then evaluation; 'recovery' = RECOVERY.K times
            # offline, then a mix of source and target samples [ours]
            "PROTOCOL": "online",
            "EPOCHS": 5,  # epochs of the offline protocol [ours; paper]
            # samples of the target set that the offline protocol adapts to, chosen by the seed; -1 = all. It evaluates
            # on all of them in any case [ours]
            "ADAPT_EX": -1,
            # 'seeded' = shuffled by the seed (class-sorted streams spoil batch statistics); 'file' = the data set's own
            # order, which is TENT's [ours]
            "ORDER": "seeded",
            "NUM_WORKERS": 0,  # worker processes of a data loader; 0 = none [ours]
        },
        "CATTAN": {
            "D": 0,  # dimension of the subspaces; 0 = chosen by the stability rule [ours; paper]
            "LAMBDA_LR": 0.025,  # weight of the confidence loss [ours; paper]
            "LAMBDA_CB": 1.0,  # weight of the class balance [ours; paper]
            "LAMBDA_ALIGN": 1.0,  # weight of the alignment cost [ours; paper]
            # 'auto' = the file in CKPT_DIR, fitted and cached where the benchmark has source data;
            # 'classifier' = row space of the classifier, no source data; otherwise a path [ours]
            "SOURCE_BASIS": "auto",
            "FORCE_BASIS": False,  # use a source subspace that was made for another model [ours]
            # 'pca' = centred basis, no mean subtracted when projecting (paper); 'none' = uncentred SVD (authors'
            # code); 'shift' = centred and mean-shifted [ours]
            "CENTERING": "pca",
            "ALIGN_REDUCTION": "sum",  # alignment cost as 'sum' (paper) or 'mean' (authors' code) [ours]
            # 'bce' = binary cross-entropy to the uniform prior (paper); 'entropy' = mean entropy minus entropy of the
            # mean prediction (authors' code, with LAMBDA_CB 0.2); 'running' = divergence of the running mean prediction
            # from the uniform prior, as in CATTAn+ [ours]
            "CLASS_BALANCE": "bce",
            "CONFIDENCE": "hlr",  # 'hlr' = hard likelihood ratio (paper), 'slr' = soft, 'entropy' [ours]
            "PHI_LR": 1.0,  # learning rate of Phi, as a multiple of OPTIM.LR [ours]
            "DELTA": 0.1,  # failure probability in the stability rule [ours; paper]
            "EPSILON": 1e6,  # tolerance in the stability rule [ours; paper]
            "DECAY": 1.0,  # weight that past batches keep at each new batch in the online tracker [ours]
            "PRIOR": 200.0,  # samples that the source subspace counts for at the start of the online tracker [ours]
        },
        "CATTAN_PLUS": {
            "D": 0,  # dimension of the target subspace; 0 = 64, or all features where there are fewer [ours]
            "LAMBDA_LR": 0.025,  # weight of the confidence loss [ours; paper]
            "LAMBDA_CB": 3.0,  # weight of the divergence of the running mean prediction [ours]
            "TEST_BALANCE": True,  # leave it out where the first predictions refute that classes are balanced [ours]
            "LAMBDA_ALIGN": 1.0,  # weight of the alignment cost, a mean [ours; authors' code]
            "CONFIDENCE": "hlr",  # 'hlr' = hard likelihood ratio, 'slr' = soft, 'entropy' [ours; paper]
            "PHI_LR": 0.3,  # learning rate of Phi, as a multiple of OPTIM.LR [ours]
            "KAPPA": 0.9,  # share of the past in the running mean prediction [ours; Mummadi et al.]
            "DECAY": 1.0,  # weight that past batches keep at each new batch in the online tracker [ours]
            "TRANSFORM": True,  # adapt IP's input transformation too; False for features and point clouds [ours]
            "WIDTH": 16,  # channels of the input transformation [ours]
            "DEPTH": 2,  # convolutions of the input transformation [ours]
            # offline: after the last epoch, one pass finds the classes in the target subspace, and predictions take
            # them into account [ours]
            "STRUCTURE": True,
            "SHRINKAGE": 0.3,  # share of the classes' covariance that is the same in every direction [ours]
            "DOUBT": 10.0,  # samples per class at which the classes found count half [ours]
            "LEVEL": 0.5,  # how far they are brought to equal parts, as far as they count; 0 = not at all [ours]
            "CALM": 0.05,  # part of predictions changed by adaptation at which they count half; 0 = in full [ours]
            # adapt and predict by the mean over an image and its mirror image; not for digits or text [ours]
            "MIRROR": False,
        },
        "TENT_PLUS": {
            "LAMBDA_CB": 1.0,  # weight of the class balance [ours; paper]
            "CLASS_BALANCE": "bce",  # 'bce' or 'entropy', as CATTAN.CLASS_BALANCE [ours]
        },
        "SHOT": {
            "LAMBDA_PL": 0.3,  # weight of the cross-entropy to the pseudo-labels [ours; SHOT]
            "ROUNDS": 2,  # rounds of centroids and labels per refresh [ours; SHOT]
        },
        "IP": {
            "LAMBDA_LR": 0.025,  # weight of the likelihood ratio [ours; Mummadi et al.]
            "CONFIDENCE": "hlr",  # 'hlr' = hard likelihood ratio, 'slr' = soft [ours; Mummadi et al.]
            "KAPPA": 0.9,  # share of the past in the running mean prediction [ours; Mummadi et al.]
            "WIDTH": 16,  # channels of the input transformation [ours]
            "DEPTH": 2,  # convolutions of the input transformation [ours]
        },
        "SOURCE": {
            # Training of a source model: SGD with Nesterov momentum 0.9. SHOT's recipe is in cfgs/officehome/base.yaml.
            "EPOCHS": 10,  # epochs [ours]
            "LR": 1e-2,  # peak learning rate [ours; SHOT]
            "BACKBONE_LR": 1.0,  # learning rate of a pretrained backbone, as a share of LR; SHOT has 0.1 [ours]
            "BATCH_SIZE": 64,  # inputs per batch [ours; SHOT]
            "WD": 5e-4,  # weight decay; SHOT has 1e-3 [ours]
            "SCHEDULE": "one_cycle",  # 'one_cycle' or 'power' = LR (1 + 10 t)^-0.75, t from 0 to 1 (SHOT) [ours]
            "LABEL_SMOOTHING": 0.0,  # share of the label spread over all classes; SHOT has 0.1 [ours]
            # share of the source data held out for validation: the epoch that does best on it is kept (SHOT: 0.1);
            # 0 = none, the last epoch is kept [ours]
            "VALIDATION": 0.0,
            "MIXED_PRECISION": False,  # train in mixed precision where the device has it [ours]
            # first weights of the network or its backbone: 'random', a file, or 'pretrained' = those of torchvision or
            # timm, downloaded where they are not cached; '' = must be said [ours]
            "INIT": "random",
            "PER_CLASS": 0,  # images per class that the source subspace is fitted to; 0 = all [ours]
        },
        "DATA": {
            # images of the source domain, for its subspace: a folder with one folder per class, or an .npz file with x
            # (uint8, N x H x W x 3) and y; '' = where the benchmark's own layout has them [ours]
            "SOURCE_DIR": "",
            "IMAGE_SIZE": 224,  # side of clean images after resizing (to 256/224 of it) and cropping [ours]
            "SOURCE": "",  # source domain of a domain-adaptation benchmark [ours]
            "TARGET": "",  # its target domain; '' = every other domain, one after the other [ours]
            "POINTS": 1024,  # points of a cloud: the first ones of a file [ours; paper]
            # True = ShapeNet and ScanNet are turned so that the z axis is up, as in ModelNet (DefRec's loader); False =
            # as in the files (PointDAN's and the authors' loaders) [ours]
            "UPRIGHT": True,
            # part of PointDA-10's target domain to adapt to and to evaluate: 'all' = both (authors' code), 'train',
            # 'test' [ours]
            "TARGET_PART": "all",
            # image lists of a domain-adaptation benchmark: '' = none, its class folders are read; 'official' =
            # DomainNet's <domain>_train.txt (source) and <domain>_test.txt (target); otherwise a folder with
            # <domain>_list.txt (lines 'path label', as SHOT has them) [ours]
            "LISTS": "",
            "SKIP_CORRUPT": False,  # leave out images that cannot be decoded (named and counted) [ours]
            # domains of a folder of features, in the order of the tables: one that is missing is an error; [] = those
            # that DATA_DIR has [ours]
            "DOMAINS": [],
            # of office_caltech10's histograms: 'none'; 'l1' = divided by their sum; 'l1_zscore' = then each column to
            # mean 0 and variance 1 over its domain, the usual form (it uses the whole unlabelled target) [ours]
            "SCALING": "none",
        },
        "SAFETY": {
            "ON_COLLAPSE": "report",  # predictions fall into few classes: 'report' or 'reset' the method [ours]
            "ON_DIVERGENCE": "report",  # the loss stays far above its level: 'report' or 'reset' the method [ours]
            "WINDOW": 256,  # predictions in which a collapse is looked for [ours]
        },
        "RECOVERY": {
            "K": 3,  # hypotheses that are adapted, protocol 'recovery' [ours; paper]
            "TAU": 0.75,  # a sample with less agreement than this is taken as source data [ours; paper]
            "FRACTION": 2 / 3,  # least confident target samples that the next hypothesis begins with [ours; paper]
            # what such a sample gets: 'bypass' = the adapted model without alignment (paper); 'source' = the untouched
            # source model, with its own statistics [ours]
            "FALLBACK": "bypass",
        },
        "CUDNN": {
            "BENCHMARK": True,  # let cuDNN pick the fastest algorithms [TENT]
        },
        "DEVICE": "auto",  # 'auto' = CUDA, then MPS, then CPU; or any torch device string [ours]
        "MIXED_PRECISION": False,  # automatic mixed precision where the device has it [ours]
        "DESC": "",  # free text that describes the run [TENT]
        "RNG_SEED": 1,  # seed of a run [TENT]
        "SEEDS": [],  # seeds to average over; [] = [RNG_SEED] [ours]
        "SAVE_DIR": "./output",  # folder of logs and results [TENT]
        "DATA_DIR": "./data",  # folder of the datasets [TENT]
        "CKPT_DIR": "./ckpt",  # folder of checkpoints and source subspaces [TENT]
        "LOG_DEST": "log.txt",  # log file inside SAVE_DIR [TENT]
        "LOG_TIME": "",  # accepted and unused: the log's lines carry their time [TENT]
    }
)
_C.freeze()

# An empty default does not show what its entries are; str unless it is named here.
EMPTY_LIST_ENTRIES: dict[str, type] = {"SEEDS": int}

# The defaults themselves, not a copy, so that it shows the nodes that plug-ins add.
cfg = _C


def get_defaults() -> CfgNode:
    """Return a fresh copy of the defaults that can be changed."""
    copy = _C.clone()
    copy.defrost()
    return copy
