//! ONNX files for tests, written field by field: Protocol Buffers without a library, so that hostile ones can
//! be written, too.

/// A message, or a part of one.
#[derive(Clone, Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    /// An empty message.
    pub fn new() -> Self {
        Self::default()
    }

    fn raw(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    /// Adds a number.
    pub fn number(mut self, field: u64, n: i64) -> Self {
        self.raw(field << 3);
        self.raw(n as u64);
        self
    }

    /// Adds bytes, a text or a message.
    pub fn bytes(mut self, field: u64, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        self.raw(field << 3 | 2);
        self.raw(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    /// Adds a binary32 number.
    pub fn float(mut self, field: u64, x: f32) -> Self {
        self.raw(field << 3 | 5);
        self.0.extend(x.to_le_bytes());
        self
    }

    /// Adds messages, each as a field of the number.
    pub fn all(self, field: u64, messages: impl IntoIterator<Item = Message>) -> Self {
        messages.into_iter().fold(self, |to, message| to.bytes(field, message))
    }

    /// The bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The number that the format has for binary32.
pub const FLOAT: i64 = 1;
/// The number that the format has for signed 64-bit integers.
pub const INT64: i64 = 7;

/// A tensor of a type with this data.
pub fn tensor(name: &str, ty: i64, dims: &[i64], data: &[u8]) -> Message {
    let with_dims = dims.iter().fold(Message::new(), |tensor, n| tensor.number(1, *n));
    with_dims.number(2, ty).bytes(8, name).bytes(9, data)
}

/// Whole numbers as a weight.
pub fn integers(name: &str, dims: &[i64], numbers: &[i64]) -> Message {
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    tensor(name, INT64, dims, &bytes)
}

/// Numbers as a weight.
pub fn floats(name: &str, dims: &[i64], numbers: &[f32]) -> Message {
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    tensor(name, FLOAT, dims, &bytes)
}

/// Numbers between -0.5 and 0.5 that follow from the name, as a weight.
pub fn noise(name: &str, dims: &[i64]) -> Message {
    let seed = name.bytes().fold(17u64, |seed, b| seed.wrapping_mul(131).wrapping_add(b.into()));
    let mut state = seed;
    let count = dims.iter().product::<i64>();
    let numbers = (0..count).map(|_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Of 256 steps, exact in binary32.
        ((state >> 40) & 0xff) as f32 / 256.0 - 0.5
    });
    floats(name, dims, &numbers.collect::<Vec<f32>>())
}

/// A node.
pub fn node(op: &str, inputs: &[&str], outputs: &[&str], attributes: &[Message]) -> Message {
    let node = inputs.iter().fold(Message::new(), |node, name| node.bytes(1, name));
    let node = outputs.iter().fold(node, |node, name| node.bytes(2, name));
    node.bytes(4, op).all(5, attributes.iter().cloned())
}

/// An attribute that is a whole number.
pub fn int(name: &str, n: i64) -> Message {
    Message::new().bytes(1, name).number(3, n).number(20, 2)
}

/// An attribute that is a list of whole numbers.
pub fn ints(name: &str, numbers: &[i64]) -> Message {
    let named = Message::new().bytes(1, name);
    numbers.iter().fold(named, |attribute, n| attribute.number(8, *n)).number(20, 7)
}

/// An attribute that is a number.
pub fn float(name: &str, x: f32) -> Message {
    Message::new().bytes(1, name).float(2, x).number(20, 1)
}

/// An input or output, with numbers or names as extents.
pub fn port(name: &str, ty: i64, dims: &[&str]) -> Message {
    let dims = dims.iter().map(|dim| match dim.parse::<i64>() {
        Ok(n) => Message::new().number(1, n),
        Err(_) => Message::new().bytes(2, dim),
    });
    let shape = Message::new().all(1, dims);
    let tensor = Message::new().number(1, ty).bytes(2, shape);
    Message::new().bytes(1, name).bytes(2, Message::new().bytes(1, tensor))
}

/// A graph in parts.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Nodes.
    pub nodes: Vec<Message>,
    /// Weights.
    pub weights: Vec<Message>,
    /// Inputs.
    pub inputs: Vec<Message>,
    /// Outputs.
    pub outputs: Vec<Message>,
}

impl Graph {
    /// The file, of operator set 17.
    pub fn model(self) -> Vec<u8> {
        let graph = Message::new()
            .all(1, self.nodes)
            .bytes(2, "test")
            .all(5, self.weights)
            .all(11, self.inputs)
            .all(12, self.outputs);
        let opset = Message::new().bytes(1, "").number(2, 17);
        Message::new().number(1, 8).bytes(7, graph).bytes(8, opset).into_bytes()
    }
}

/// Two layers and a softmax: `x` `[batch, 8]` to `y` `[batch, 4]`.
pub fn mlp() -> Graph {
    Graph {
        nodes: vec![
            node("MatMul", &["x", "w1"], &["h1"], &[]),
            node("Add", &["h1", "b1"], &["h2"], &[]),
            node("Relu", &["h2"], &["h3"], &[]),
            node("Gemm", &["h3", "w2", "b2"], &["h4"], &[int("transB", 1)]),
            node("Softmax", &["h4"], &["y"], &[int("axis", -1)]),
        ],
        weights: vec![
            noise("w1", &[8, 16]),
            noise("b1", &[16]),
            noise("w2", &[4, 16]),
            noise("b2", &[4]),
        ],
        inputs: vec![port("x", FLOAT, &["batch", "8"])],
        outputs: vec![port("y", FLOAT, &["batch", "4"])],
    }
}

/// The sum of the numbers below `n`, which has as many of them in memory as its input says, and nothing before that.
pub fn sum_below() -> Graph {
    Graph {
        nodes: vec![
            node("Range", &["zero", "n", "one"], &["i"], &[]),
            node("Cast", &["i"], &["x"], &[int("to", FLOAT)]),
            node("ReduceSum", &["x"], &["y"], &[int("keepdims", 0)]),
        ],
        weights: vec![integers("zero", &[], &[0]), integers("one", &[], &[1])],
        inputs: vec![port("n", INT64, &[])],
        outputs: vec![port("y", FLOAT, &[])],
    }
}

/// Next to nothing, `y` `[]`, of `x` `[1, 4]`, by so many tensors `[rows, 4]` more than one, each made of the
/// last, that are all needed until the end. No node takes and makes more than two of them.
pub fn alive_at_once(count: usize, rows: i64) -> Graph {
    let sum = |from: &str, to: &str| node("ReduceSum", &[from], &[to], &[int("keepdims", 0)]);
    let make = |i| node("Sin", &[&format!("t{i}")], &[&format!("t{}", i + 1)], &[]);
    // Each waits for the sum over the one that was made after it.
    let take = |i| {
        let [made, behind, small, moved, cosine, to] =
            [("t", i), ("r", i + 1), ("v", i), ("u", i), ("w", i), ("r", i)]
                .map(|(name, i)| format!("{name}{i}"));
        [
            node("Mul", &[&behind, "small"], &[&small], &[]),
            node("Sub", &[&made, &small], &[&moved], &[]),
            node("Cos", &[&moved], &[&cosine], &[]),
            sum(&cosine, &to),
        ]
    };
    let mut nodes = vec![node("Expand", &["x", "shape"], &["t0"], &[])];
    nodes.extend((0..count).map(make));
    nodes.push(sum(&format!("t{count}"), &format!("r{count}")));
    nodes.extend((0..count).rev().flat_map(take));
    nodes.push(node("Mul", &["r0", "small"], &["y"], &[]));
    Graph {
        nodes,
        weights: vec![integers("shape", &[2], &[rows, 4]), floats("small", &[], &[1e-37])],
        inputs: vec![port("x", FLOAT, &["1", "4"])],
        outputs: vec![port("y", FLOAT, &[])],
    }
}

/// Convolutions over an image: `x` `[1, 3, 16, 16]` to `y` `[1, 5]`.
pub fn convolution() -> Graph {
    Graph {
        nodes: vec![
            node("Conv", &["x", "k1", "c1"], &["h1"], &[ints("pads", &[1, 1, 1, 1])]),
            node("Relu", &["h1"], &["h2"], &[]),
            node(
                "MaxPool",
                &["h2"],
                &["h3"],
                &[ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])],
            ),
            node("Conv", &["h3", "k2"], &["h4"], &[ints("strides", &[2, 2])]),
            node("GlobalAveragePool", &["h4"], &["h5"], &[]),
            node("Flatten", &["h5"], &["h6"], &[]),
            node("MatMul", &["h6", "w"], &["y"], &[]),
        ],
        weights: vec![
            noise("k1", &[8, 3, 3, 3]),
            noise("c1", &[8]),
            noise("k2", &[6, 8, 3, 3]),
            noise("w", &[6, 5]),
        ],
        inputs: vec![port("x", FLOAT, &["1", "3", "16", "16"])],
        outputs: vec![port("y", FLOAT, &["1", "5"])],
    }
}

/// A transformer encoder of one layer with one head: `input_ids` and `attention_mask` `[batch, tokens]` to
/// `hidden` `[batch, tokens, 16]`.
pub fn encoder() -> Graph {
    let norm = |from: &str, to: &str, weight: &str, bias: &str| {
        node("LayerNormalization", &[from, weight, bias], &[to], &[float("epsilon", 1e-5)])
    };
    Graph {
        nodes: vec![
            node("Gather", &["table", "input_ids"], &["e"], &[]),
            node("MatMul", &["e", "wq"], &["q"], &[]),
            node("MatMul", &["e", "wk"], &["k"], &[]),
            node("MatMul", &["e", "wv"], &["v"], &[]),
            node("Transpose", &["k"], &["kt"], &[ints("perm", &[0, 2, 1])]),
            node("MatMul", &["q", "kt"], &["qk"], &[]),
            node("Mul", &["qk", "scale"], &["scores"], &[]),
            node("Cast", &["attention_mask"], &["mask"], &[int("to", FLOAT)]),
            node("Unsqueeze", &["mask", "axis"], &["mask1"], &[]),
            node("Sub", &["one", "mask1"], &["mask2"], &[]),
            node("Mul", &["mask2", "far"], &["mask3"], &[]),
            node("Add", &["scores", "mask3"], &["masked"], &[]),
            node("Softmax", &["masked"], &["p"], &[int("axis", -1)]),
            node("MatMul", &["p", "v"], &["a"], &[]),
            node("Add", &["e", "a"], &["r1"], &[]),
            norm("r1", "n1", "g1", "o1"),
            node("MatMul", &["n1", "up"], &["f1"], &[]),
            node("Div", &["f1", "root"], &["f2"], &[]),
            node("Erf", &["f2"], &["f3"], &[]),
            node("Add", &["f3", "one"], &["f4"], &[]),
            node("Mul", &["f1", "f4"], &["f5"], &[]),
            node("Mul", &["f5", "half"], &["f6"], &[]),
            node("MatMul", &["f6", "down"], &["f7"], &[]),
            node("Add", &["n1", "f7"], &["r2"], &[]),
            norm("r2", "hidden", "g2", "o2"),
        ],
        weights: vec![
            noise("table", &[32, 16]),
            noise("wq", &[16, 16]),
            noise("wk", &[16, 16]),
            noise("wv", &[16, 16]),
            floats("scale", &[], &[0.25]),
            integers("axis", &[1], &[1]),
            floats("one", &[], &[1.0]),
            floats("far", &[], &[-10_000.0]),
            noise("g1", &[16]),
            noise("o1", &[16]),
            noise("up", &[16, 64]),
            floats("root", &[], &[std::f32::consts::SQRT_2]),
            floats("half", &[], &[0.5]),
            noise("down", &[64, 16]),
            noise("g2", &[16]),
            noise("o2", &[16]),
        ],
        inputs: vec![
            port("input_ids", INT64, &["batch", "tokens"]),
            port("attention_mask", INT64, &["batch", "tokens"]),
        ],
        outputs: vec![port("hidden", FLOAT, &["batch", "tokens", "16"])],
    }
}
