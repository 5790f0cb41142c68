//! Tensors as NumPy's `.npy` files (numpy.lib.format, versions 1 to 3): one array, row by row.

use ruvllm_abi::{DType, f16_to_f32};

/// What every file begins with.
const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Files are aligned to so many bytes before the numbers begin.
const ALIGN: usize = 64;

/// Reads an array: its shape and its numbers.
///
/// # Errors
/// A sentence for the author.
pub(crate) fn read(bytes: &[u8]) -> Result<(Vec<usize>, Vec<f64>), String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("it is no .npy file")?;
    let (header, data) = match rest {
        [1, _, a, b, rest @ ..] => rest.split_at_checked(usize::from(u16::from_le_bytes([*a, *b]))),
        [2 | 3, _, a, b, c, d, rest @ ..] => {
            let length = u32::from_le_bytes([*a, *b, *c, *d]);
            usize::try_from(length).ok().and_then(|length| rest.split_at_checked(length))
        }
        _ => return Err("it is of a version of .npy that is not read here".to_owned()),
    }
    .ok_or("it ends within its header")?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is no text")?;
    let descr = field(header, "descr").and_then(|rest| rest.split('\'').nth(1));
    let descr = descr.ok_or("its header names no single type of numbers")?;
    if field(header, "fortran_order").is_none_or(|rest| !rest.starts_with("False")) {
        return Err(
            "its numbers stand column by column: save it with numpy.ascontiguousarray".into()
        );
    }
    let shape = field(header, "shape").and_then(|rest| rest.strip_prefix('(')?.split(')').next());
    let shape = shape.ok_or("its header has no shape")?.split(',').map(str::trim);
    let shape = shape.filter(|extent| !extent.is_empty()).map(str::parse::<usize>);
    let shape: Vec<usize> = shape.collect::<Result<_, _>>().map_err(|_| "its shape is no shape")?;
    let (size, number) = reader(descr).ok_or_else(|| {
        format!(
            "its numbers are {descr:?}; save them as float16, float32, float64 or an integer type"
        )
    })?;
    let elems = shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent));
    if elems.and_then(|elems| elems.checked_mul(size)) != Some(data.len()) {
        return Err(format!("{} bytes do not fill {shape:?} of {descr}", data.len()));
    }
    Ok((shape, data.chunks_exact(size).map(number).collect()))
}

/// What follows the name of a field in the header, which is a literal of Python.
fn field<'h>(header: &'h str, name: &str) -> Option<&'h str> {
    let (_, rest) = header.split_once(&format!("'{name}'"))?;
    Some(rest.trim_start().strip_prefix(':')?.trim_start())
}

/// Bytes of a number, and how it is read.
type Reader = (usize, fn(&[u8]) -> f64);

fn reader(descr: &str) -> Option<Reader> {
    /// The first bytes of a slice that has as many: it comes from `chunks_exact`.
    fn head<const N: usize>(bytes: &[u8]) -> [u8; N] {
        bytes.first_chunk::<N>().copied().unwrap_or([0; N])
    }
    Some(match descr {
        "<f2" => (2, |b| f64::from(f16_to_f32(u16::from_le_bytes(head(b))))),
        "<f4" => (4, |b| f64::from(f32::from_le_bytes(head(b)))),
        "<f8" => (8, |b| f64::from_le_bytes(head(b))),
        "|b1" | "|u1" => (1, |b| f64::from(u8::from_le_bytes(head(b)))),
        "|i1" => (1, |b| f64::from(i8::from_le_bytes(head(b)))),
        "<u2" => (2, |b| f64::from(u16::from_le_bytes(head(b)))),
        "<i2" => (2, |b| f64::from(i16::from_le_bytes(head(b)))),
        "<u4" => (4, |b| f64::from(u32::from_le_bytes(head(b)))),
        "<i4" => (4, |b| f64::from(i32::from_le_bytes(head(b)))),
        "<u8" => (8, |b| u64::from_le_bytes(head(b)) as f64),
        "<i8" => (8, |b| i64::from_le_bytes(head(b)) as f64),
        _ => return None,
    })
}

/// Writes an array: in the tensor's own type where NumPy has it, otherwise, of bf16 and block formats,
/// the numbers as float32.
pub(crate) fn write(dtype: DType, shape: &[usize], bytes: &[u8], values: &[f64]) -> Vec<u8> {
    let own = match dtype {
        DType::F32 => Some("<f4"),
        DType::F16 => Some("<f2"),
        DType::U32 => Some("<u4"),
        DType::I32 => Some("<i4"),
        DType::U8 => Some("|u1"),
        _ => None,
    };
    let extents: String = shape.iter().map(|extent| format!("{extent}, ")).collect();
    let extents = match shape {
        [_] => extents.trim_end(),
        _ => extents.trim_end_matches(", "),
    };
    let descr = own.unwrap_or("<f4");
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({extents}), }}");
    let before = MAGIC.len() + 4;
    let length = (before + header.len() + 1).next_multiple_of(ALIGN) - before;
    header.extend(std::iter::repeat_n(' ', length - 1 - header.len()));
    header.push('\n');
    // The shape of a tensor has a few extents.
    let length = u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes();
    let mut file = [&MAGIC[..], &[1, 0], &length, header.as_bytes()].concat();
    match own {
        Some(_) => file.extend_from_slice(bytes),
        None => file.extend(values.iter().flat_map(|x| (*x as f32).to_le_bytes())),
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for shape in [&[6][..], &[2, 3], &[1, 2, 3], &[]] {
            let values: Vec<f64> =
                (0..shape.iter().product()).map(|i: usize| i as f64 - 1.5).collect();
            let bytes: Vec<u8> = values.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect();
            let file = write(DType::F32, shape, &bytes, &values);
            assert_eq!(read(&file).unwrap(), (shape.to_vec(), values.clone()));
            // Numbers begin on a multiple of 64, as NumPy has it.
            assert_eq!((file.len() - bytes.len()) % ALIGN, 0);
            let file = write(DType::BF16, shape, &[], &values);
            assert_eq!(read(&file).unwrap(), (shape.to_vec(), values));
        }
    }

    #[test]
    fn a_file_of_numpy_is_read() {
        // numpy.save of numpy.array([[1, -2]], dtype="float16"), version 1.
        let header = "{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2), }";
        let header = format!("{header:<117}\n");
        let file = |header: &str, data: &[u8]| {
            let length = u16::try_from(header.len()).unwrap().to_le_bytes();
            [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat()
        };
        let data = [0x00, 0x3c, 0x00, 0xc0];
        assert_eq!(read(&file(&header, &data)).unwrap(), (vec![1, 2], vec![1.0, -2.0]));
        for (bad, what) in [
            (file(&header, &data[..3]), "do not fill"),
            (file(&header.replace("False", "True "), &data), "column by column"),
            (file(&header.replace("<f2", ">f2"), &data), "\">f2\""),
            (file(&header.replace("(1, 2)", "(1, x)"), &data), "no shape"),
            (b"\x93NUMPY\x09\x00".to_vec(), "version"),
            (file(&header, &data)[..20].to_vec(), "within its header"),
            (b"{}".to_vec(), "no .npy"),
        ] {
            assert!(read(&bad).unwrap_err().contains(what), "{what}");
        }
    }
}
