//! Tensors as JSON: a shape, and the numbers row by row.
//!
//! JSON has no NaN and no infinities: they are written as text, `"NaN"`, `"Infinity"` and `"-Infinity"`.

use std::fmt;

use ruvllm_abi::DType;
use ruvllm_host::Tensor;
use ruvllm_manifest::TensorSpec;
use ruvllm_native::judge::encode;
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A tensor as a file holds it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Numbers {
    /// What the kernel calls it, where a kernel gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its element type there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Its extents, outermost first.
    pub shape: Vec<usize>,
    /// Its elements, row by row.
    pub values: Vec<Number>,
}

/// A number that may be NaN or infinite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Number(pub f64);

impl Numbers {
    /// What a tensor holds.
    pub(crate) fn of(name: &str, tensor: &Tensor) -> Numbers {
        Numbers {
            name: Some(name.to_owned()),
            dtype: Some(tensor.dtype().to_string()),
            shape: tensor.shape().to_vec(),
            values: values(tensor).into_iter().map(Number).collect(),
        }
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = f64> {
        self.values.iter().map(|number| number.0)
    }

    /// Whether the values fill the shape.
    ///
    /// # Errors
    /// A sentence that names the tensor.
    pub(crate) fn check(&self, name: &str) -> Result<(), String> {
        let elems = self.shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent));
        if elems == Some(self.values.len()) {
            return Ok(());
        }
        Err(format!("`{name}`: {} values do not fill {:?}", self.values.len(), self.shape))
    }

    /// The tensor of a kernel, in the type that its manifest has.
    ///
    /// # Errors
    /// A sentence that names the tensor.
    pub(crate) fn tensor(&self, spec: &TensorSpec) -> Result<Tensor, String> {
        self.check(&spec.name)?;
        let whole = |low: f64, high: f64| {
            let wrong = |x: &f64| !(x.fract() == 0.0 && (low..=high).contains(x));
            match self.values().find(wrong) {
                Some(x) => Err(format!("`{}`: {x} is no {}", spec.name, spec.dtype)),
                None => Ok(()),
            }
        };
        let bytes: Option<Vec<u8>> = match spec.dtype {
            DType::U32 => {
                whole(0.0, f64::from(u32::MAX))?;
                Some(self.values().flat_map(|x| (x as u32).to_le_bytes()).collect())
            }
            DType::I32 => {
                whole(f64::from(i32::MIN), f64::from(i32::MAX))?;
                Some(self.values().flat_map(|x| (x as i32).to_le_bytes()).collect())
            }
            DType::U8 => {
                whole(0.0, f64::from(u8::MAX))?;
                Some(self.values().map(|x| x as u8).collect())
            }
            dtype => encode(dtype, &self.values().map(|x| x as f32).collect::<Vec<f32>>()).ok(),
        };
        let tensor = bytes.and_then(|bytes| Tensor::new(spec.dtype, self.shape.clone(), bytes));
        tensor.ok_or_else(|| {
            format!("`{}`: {:?} has no size in {}", spec.name, self.shape, spec.dtype)
        })
    }
}

/// The elements of a tensor, block formats dequantised.
pub(crate) fn values(tensor: &Tensor) -> Vec<f64> {
    let words = || tensor.bytes().as_chunks::<4>().0.iter();
    match tensor.dtype() {
        // Of binary32 the shortest text that means it: 0.1, and not 0.10000000149011612.
        DType::F32 => tensor.to_f32().into_iter().map(shortest).collect(),
        DType::U32 => words().map(|word| f64::from(u32::from_le_bytes(*word))).collect(),
        DType::I32 => words().map(|word| f64::from(i32::from_le_bytes(*word))).collect(),
        _ => tensor.to_f32().into_iter().map(f64::from).collect(),
    }
}

fn shortest(x: f32) -> f64 {
    format!("{x:e}").parse().unwrap_or(f64::from(x))
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            x if x.is_finite() => serializer.serialize_f64(x),
            x if x.is_nan() => serializer.serialize_str("NaN"),
            x if x > 0.0 => serializer.serialize_str("Infinity"),
            _ => serializer.serialize_str("-Infinity"),
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        struct Reads;

        impl Visitor<'_> for Reads {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, \"NaN\", \"Infinity\" or \"-Infinity\"")
            }

            fn visit_f64<E: de::Error>(self, x: f64) -> Result<Number, E> {
                Ok(Number(x))
            }

            fn visit_u64<E: de::Error>(self, x: u64) -> Result<Number, E> {
                Ok(Number(x as f64))
            }

            fn visit_i64<E: de::Error>(self, x: i64) -> Result<Number, E> {
                Ok(Number(x as f64))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
                Ok(Number(match text {
                    "NaN" => f64::NAN,
                    "Infinity" => f64::INFINITY,
                    "-Infinity" => f64::NEG_INFINITY,
                    _ => return Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }))
            }
        }

        deserializer.deserialize_any(Reads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_json_has_not_are_text() {
        let text = r#"{"shape":[5],"values":[1,-0.5,"NaN","Infinity","-Infinity"]}"#;
        let read: Numbers = serde_json::from_str(text).unwrap();
        let values: Vec<f64> = read.values().collect();
        assert_eq!(values[..2], [1.0, -0.5]);
        assert!(values[2].is_nan() && values[3] == f64::INFINITY && values[4] == -f64::INFINITY);
        let again = serde_json::to_string(&read).unwrap();
        assert_eq!(again, text.replace("[1,", "[1.0,"));
        assert!(serde_json::from_str::<Number>("\"nought\"").is_err());
    }

    #[test]
    fn a_tensor_has_the_type_of_the_manifest_and_integers_stay_exact() {
        let spec = |dtype| TensorSpec { name: "x".to_owned(), dtype, shape: Vec::new() };
        let numbers = |values: &[f64]| Numbers {
            name: None,
            dtype: None,
            shape: vec![values.len()],
            values: values.iter().copied().map(Number).collect(),
        };
        for dtype in [DType::U32, DType::I32, DType::F32, DType::F16, DType::U8] {
            let tensor = numbers(&[3.0, 200.0]).tensor(&spec(dtype)).unwrap();
            assert_eq!((tensor.dtype(), values(&tensor)), (dtype, vec![3.0, 200.0]));
        }
        let exact = numbers(&[4_294_967_295.0]).tensor(&spec(DType::U32)).unwrap();
        assert_eq!(values(&exact), [4_294_967_295.0]);
        let tenth = numbers(&[0.1]).tensor(&spec(DType::F32)).unwrap();
        assert_eq!(values(&tenth), [0.1]);
        assert!(numbers(&[0.5]).tensor(&spec(DType::U8)).unwrap_err().contains("0.5 is no u8"));
        assert!(numbers(&[f64::NAN]).tensor(&spec(DType::I32)).is_err());
        assert!(numbers(&[0.5]).tensor(&spec(DType::Q8_0)).unwrap_err().contains("no size"));
    }
}
