use super::*;

/// What the `gguf` package decoded and encoded; `make_quants.py` beside it says how.
const FIXTURE: &[u8] = include_bytes!("../../tests/fixtures/quants.bin");

struct Case {
    dtype: DType,
    /// Whether the bytes were made from the values, not the values from the bytes.
    encoded: bool,
    bytes: Vec<u8>,
    values: Vec<f32>,
}

fn cases() -> Vec<Case> {
    let mut rest = FIXTURE;
    let mut cases = Vec::new();
    while !rest.is_empty() {
        let name = std::str::from_utf8(&rest[..8]).unwrap().trim_end_matches('\0').to_owned();
        let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap()) as usize;
        let (bytes, elems) = (word(8), word(12));
        let values = &rest[16 + bytes..16 + bytes + 4 * elems];
        cases.push(Case {
            dtype: name.trim_start_matches('=').parse().unwrap(),
            encoded: name.starts_with('='),
            bytes: rest[16..16 + bytes].to_vec(),
            values: values.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
        });
        rest = &rest[16 + bytes + 4 * elems..];
    }
    cases
}

#[test]
fn every_format_decodes_to_what_the_reference_decoder_gives() {
    let mut seen = 0;
    for case in cases().into_iter().filter(|case| !case.encoded) {
        for &isa in Isa::available() {
            // A byte of slack moves the row off any alignment.
            let mut moved = vec![0];
            moved.extend_from_slice(&case.bytes);
            let mut y = vec![f32::NAN; case.values.len()];
            dequantize_row_with(isa, case.dtype, &moved[1..], &mut y).unwrap();
            assert_eq!(y, case.values, "{} with {isa}", case.dtype);
        }
        seen += 1;
    }
    assert_eq!(seen, 10);
}

#[test]
fn encoding_gives_the_bytes_of_the_reference_encoder() {
    let mut seen = 0;
    for case in cases().into_iter().filter(|case| case.encoded) {
        let mut bytes = vec![0xaa; case.bytes.len()];
        quantize_row(case.dtype, &case.values, &mut bytes).unwrap();
        assert_eq!(bytes, case.bytes, "{}", case.dtype);
        seen += 1;
    }
    assert_eq!(seen, 4);
}

#[test]
fn f32_rows_survive_both_ways() {
    let x = [0.0, -0.0, 1.5, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY];
    let (mut bytes, mut y) = ([0; 24], [0.0; 6]);
    quantize_row(DType::F32, &x, &mut bytes).unwrap();
    dequantize_row(DType::F32, &bytes, &mut y).unwrap();
    assert_eq!(x.map(f32::to_bits), y.map(f32::to_bits));
}

#[test]
fn every_instruction_set_unpacks_random_blocks_alike() {
    let mut state = 1u32;
    for dtype in DType::ALL.into_iter().filter(|dtype| is_blocked(*dtype)) {
        let elems = if dtype.layout().elems == 256 { 512 } else { 32 * 19 };
        let mut bytes: Vec<u8> = (0..dtype.bytes_for(elems).unwrap())
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        // Exponents of 0b11111 are infinities and NaN; clear one bit of every possible high byte.
        bytes.iter_mut().for_each(|byte| *byte &= 0xbf);
        let mut expected = vec![0.0; elems];
        dequantize_row_with(Isa::Scalar, dtype, &bytes, &mut expected).unwrap();
        for &isa in Isa::available() {
            let mut y = vec![0.0; elems];
            dequantize_row_with(isa, dtype, &bytes, &mut y).unwrap();
            assert_eq!(y, expected, "{dtype} with {isa}");
        }
    }
}

#[test]
fn hostile_sizes_are_refused() {
    let mut y = [0.0; 33];
    for dtype in DType::ALL {
        let code = dequantize_row(dtype, &[0; 7], &mut y).unwrap_err().code();
        let expected = if is_float(dtype) || is_blocked(dtype) {
            "native_shape"
        } else {
            "native_unsupported"
        };
        assert_eq!(code, expected);
    }
    assert_eq!(
        quantize_row(DType::Q4_K, &[0.0; 256], &mut [0; 144]).unwrap_err().code(),
        "native_unsupported"
    );
    assert_eq!(
        quantize_row(DType::Q8_0, &[0.0; 32], &mut [0; 33]).unwrap_err().code(),
        "native_shape"
    );
    assert_eq!(dequantize_row(DType::Q8_0, &[], &mut []), Ok(()));
}
