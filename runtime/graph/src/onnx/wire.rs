//! Protocol Buffers as bytes: fields one after the other, none of which is believed.
//!
//! Reads what ONNX files use and nothing else: groups, which nobody writes any more, are an error.

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    /// A number, as 64 bits.
    Varint(u64),
    /// Four bytes.
    Four,
    /// Eight bytes.
    Eight,
    /// A message, a text, bytes, or packed numbers.
    Bytes(&'a [u8]),
}

/// The bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// The fields of a message, in order.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// The next field's number and value; `None` behind the last.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = varint(&mut self.rest)?;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut self.rest)?),
            1 => self.skip(8).map(|()| Value::Eight)?,
            2 => {
                let length = varint(&mut self.rest)?;
                let length = usize::try_from(length).ok().filter(|n| *n <= self.rest.len());
                let length = length.ok_or(Malformed("a field is longer than its message"))?;
                let (bytes, rest) = self.rest.split_at(length);
                self.rest = rest;
                Value::Bytes(bytes)
            }
            5 => self.skip(4).map(|()| Value::Four)?,
            _ => return Err(Malformed("a field has a type that there is not")),
        };
        match key >> 3 {
            0 => Err(Malformed("a field has the number 0")),
            number => Ok(Some((number, value))),
        }
    }

    fn skip(&mut self, bytes: usize) -> Result<(), Malformed> {
        self.rest = self.rest.get(bytes..).ok_or(Malformed("the file ends within a number"))?;
        Ok(())
    }
}

fn varint(rest: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, tail) = rest.split_first().ok_or(Malformed("the file ends within a number"))?;
        *rest = tail;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            break;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Malformed("a number has more than 64 bits"))
}

impl<'a> Value<'a> {
    /// The bytes of a message, text or list.
    pub(super) fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed("a number stands where a message should")),
        }
    }

    /// A text.
    pub(super) fn text(self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("a name is not UTF-8"))
    }

    /// A number.
    pub(super) fn number(self) -> Result<i64, Malformed> {
        match self {
            Value::Varint(value) => Ok(value as i64),
            _ => Err(Malformed("something else stands where a number should")),
        }
    }

    /// Numbers that are repeated, each on its own or packed.
    pub(super) fn numbers(self, into: &mut Vec<i64>, most: usize) -> Result<(), Malformed> {
        let packed = match self {
            Value::Varint(value) => {
                into.push(value as i64);
                &[][..]
            }
            Value::Bytes(packed) => packed,
            _ => return Err(Malformed("something else stands where a number should")),
        };
        let mut rest = packed;
        while !rest.is_empty() {
            into.push(varint(&mut rest)? as i64);
            if into.len() > most {
                return Err(Malformed("a list of numbers is too long"));
            }
        }
        if into.len() > most { Err(Malformed("a list of numbers is too long")) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_message_is_an_error() {
        for bytes in [
            &[0x08][..],
            &[0x08, 0x80],
            &[0x0a, 5, 1],
            &[0x0b],
            &[0x00, 1],
            &[0x0d, 1, 2],
            &[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2],
            &[0x0a, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
        ] {
            let mut fields = Fields::of(bytes);
            assert!(fields.next().is_err(), "{bytes:?}");
        }
        let mut fields = Fields::of(&[0x08, 0x96, 0x01, 0x12, 1, 7]);
        assert!(matches!(fields.next(), Ok(Some((1, Value::Varint(150))))));
        assert!(matches!(fields.next(), Ok(Some((2, Value::Bytes([7]))))));
        assert!(matches!(fields.next(), Ok(None)));
    }
}
