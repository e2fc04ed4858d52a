//! Numbers in texts, read and compared as Java does; the twin of `java_numbers.py`.

use std::cmp::Ordering;

/// A property does not hold what the expression compares it with: nothing is selected.
#[derive(Debug, PartialEq)]
pub struct Unreadable;

pub const INT_MAX: i64 = 0x7fff_ffff;
pub const LONG_MAX: i64 = i64::MAX;

/// Zero of every set of ten decimal digits in Unicode's first plane; Java looks at single UTF-16 units, so digits
/// beyond it are none.
const ZEROES: [u16; 37] = [
    0x0030, 0x0660, 0x06f0, 0x07c0, 0x0966, 0x09e6, 0x0a66, 0x0ae6, 0x0b66, 0x0be6, 0x0c66, 0x0ce6,
    0x0d66, 0x0de6, 0x0e50, 0x0ed0, 0x0f20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80,
    0x1a90, 0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0,
    0xff10,
];

fn digit(character: char) -> Option<u64> {
    let code = u16::try_from(u32::from(character)).ok()?;
    let index = ZEROES
        .partition_point(|zero| *zero <= code)
        .checked_sub(1)?;
    let value = code - ZEROES[index];
    (value < 10).then_some(u64::from(value))
}

/// `Integer.valueOf` or `Long.valueOf`: a sign and digits of any script, within the range.
pub fn read_integer(text: &[u8], limit: i64) -> Result<i64, Unreadable> {
    let (negative, digits) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() {
        return Err(Unreadable);
    }
    let zeroes = digits.iter().take_while(|byte| **byte == b'0').count();
    let short = &digits[zeroes..];
    let mut value: u64 = 0;
    if short.len() <= 19 && short.iter().all(u8::is_ascii_digit) {
        for byte in short {
            value = value * 10 + u64::from(byte - b'0');
        }
    } else {
        let text = std::str::from_utf8(short).map_err(|_| Unreadable)?;
        let mut count = 0;
        for character in text.chars() {
            count += 1;
            if count > 19 {
                return Err(Unreadable);
            }
            value = value * 10 + digit(character).ok_or(Unreadable)?;
        }
    }
    let value = if negative {
        -i128::from(value)
    } else {
        i128::from(value)
    };
    if value < -i128::from(limit) - 1 || value > i128::from(limit) {
        return Err(Unreadable);
    }
    i64::try_from(value).map_err(|_| Unreadable)
}

fn blanks(text: &[u8]) -> usize {
    text.iter().take_while(|byte| **byte <= 0x20).count()
}

fn digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

fn hex_digits(text: &[u8]) -> usize {
    text.iter()
        .take_while(|byte| byte.is_ascii_hexdigit())
        .count()
}

/// Bytes of `digits [. digits] | . digits`; 0 when there is none.
fn fraction(text: &[u8], run: fn(&[u8]) -> usize) -> usize {
    let before = run(text);
    if text.get(before) != Some(&b'.') {
        return before;
    }
    let behind = run(&text[before + 1..]);
    if before == 0 && behind == 0 {
        return 0;
    }
    before + 1 + behind
}

/// Bytes of a mark out of `marks`, a sign and digits; 0 when that is not what stands there.
fn exponent(text: &[u8], marks: &[u8; 2]) -> usize {
    match text.first() {
        Some(first) if marks.contains(first) => {}
        _ => return 0,
    }
    let sign = usize::from(matches!(text.get(1), Some(b'+' | b'-')));
    let count = digits(&text[1 + sign..]);
    if count == 0 {
        0
    } else {
        1 + sign + count
    }
}

/// `Double.valueOf`: blanks around, exponents, `NaN`, `Infinity`, a type suffix, hexadecimal.
pub fn read_double(text: &[u8]) -> Result<f64, Unreadable> {
    let start = blanks(text);
    let rest = &text[start..];
    let sign = usize::from(matches!(rest.first(), Some(b'+' | b'-')));
    let negative = rest.first() == Some(&b'-');
    let number = &rest[sign..];
    let (size, value, may_have_suffix) = if number.starts_with(b"NaN") {
        (3, f64::NAN, false)
    } else if number.starts_with(b"Infinity") {
        (8, f64::INFINITY, false)
    } else if number.starts_with(b"0x") || number.starts_with(b"0X") {
        let mantissa = fraction(&number[2..], hex_digits);
        let power = exponent(&number[2 + mantissa..], b"pP");
        if mantissa == 0 || power == 0 {
            return Err(Unreadable);
        }
        let value = hexadecimal(
            &number[2..2 + mantissa],
            &number[2 + mantissa + 1..2 + mantissa + power],
        );
        (2 + mantissa + power, value, true)
    } else {
        let mantissa = fraction(number, digits);
        if mantissa == 0 {
            return Err(Unreadable);
        }
        let size = mantissa + exponent(&number[mantissa..], b"eE");
        let text = std::str::from_utf8(&number[..size]).map_err(|_| Unreadable)?;
        (size, text.parse::<f64>().map_err(|_| Unreadable)?, true)
    };
    let mut rest = &number[size..];
    if may_have_suffix && matches!(rest.first(), Some(b'f' | b'F' | b'd' | b'D')) {
        rest = &rest[1..];
    }
    if blanks(rest) != rest.len() {
        return Err(Unreadable);
    }
    Ok(if negative { -value } else { value })
}

/// Digits with at most one point, times two to the power given; rounded to even.
fn hexadecimal(digits: &[u8], power: &[u8]) -> f64 {
    let mut mantissa: u64 = 0;
    let mut rest = false;
    let mut scale: i64 = 0;
    let mut behind_point = false;
    for byte in digits {
        if *byte == b'.' {
            behind_point = true;
            continue;
        }
        let digit = (*byte as char).to_digit(16).map_or(0, u64::from);
        if mantissa < 1 << 56 {
            mantissa = mantissa << 4 | digit;
            scale -= if behind_point { 4 } else { 0 };
        } else {
            rest |= digit != 0;
            scale += if behind_point { 0 } else { 4 };
        }
    }
    if mantissa == 0 {
        return 0.0;
    }
    let negative = power.first() == Some(&b'-');
    let mut shift: i64 = 0;
    for byte in power.iter().filter(|byte| byte.is_ascii_digit()) {
        shift = shift
            .saturating_mul(10)
            .saturating_add(i64::from(byte - b'0'));
    }
    let shift = shift.min(i64::MAX / 4);
    // The lowest bit stands for everything that was cut off.
    let mantissa = mantissa << 2 | u64::from(rest);
    let exponent = scale + if negative { -shift } else { shift } - 2;
    let bits = i64::from(64 - mantissa.leading_zeros());
    let top = exponent + bits - 1;
    if top > 1023 {
        return f64::INFINITY;
    }
    if top < -1075 {
        return 0.0;
    }
    let precision = (top + 1075).min(53);
    let cut = bits - precision;
    let kept = if cut <= 0 {
        mantissa << -cut
    } else {
        let kept = if cut > 63 { 0 } else { mantissa >> cut };
        let lost = mantissa - if cut > 63 { 0 } else { kept << cut };
        let half = 1u64 << (cut - 1);
        kept + u64::from(lost > half || (lost == half && kept & 1 == 1))
    };
    let unit = top - precision + 1;
    let unit = if unit >= -1022 {
        f64::from_bits(((unit + 1023) as u64) << 52)
    } else {
        f64::from_bits(1 << (unit + 1074).max(0))
    };
    kept as f64 * unit
}

fn rank(value: f64) -> u8 {
    if value.is_nan() {
        2
    } else if value == 0.0 && value.is_sign_negative() {
        0
    } else {
        1
    }
}

/// `Double.compareTo`: NaN is equal to itself and above all; -0.0 is below 0.0.
pub fn compare_doubles(left: f64, right: f64) -> Ordering {
    if left < right {
        Ordering::Less
    } else if left > right {
        Ordering::Greater
    } else {
        rank(left).cmp(&rank(right))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_java_reads_them() {
        assert_eq!(read_integer(b"-0005", INT_MAX), Ok(-5));
        assert_eq!(read_integer("\u{665}".as_bytes(), INT_MAX), Ok(5));
        assert_eq!(read_integer(b"9223372036854775807", LONG_MAX), Ok(i64::MAX));
        assert_eq!(
            read_integer(b"-9223372036854775808", LONG_MAX),
            Ok(i64::MIN)
        );
        for text in ["", "+", " 5", "5.0", "2147483648", "\u{1d7d3}"] {
            assert_eq!(
                read_integer(text.as_bytes(), INT_MAX),
                Err(Unreadable),
                "{text}"
            );
        }
    }

    #[test]
    fn hexadecimal_fractions_are_rounded_to_even() {
        assert_eq!(read_double(b"0x1p3"), Ok(8.0));
        assert_eq!(read_double(b"0x1.8P1F"), Ok(3.0));
        assert_eq!(read_double(b"0x1.00000000000008p0"), Ok(1.0));
        assert_eq!(
            read_double(b"0x1.000000000000080000000000001p0"),
            Ok(1.0 + f64::EPSILON)
        );
        assert_eq!(read_double(b"0x1p-1074"), Ok(f64::from_bits(1)));
        assert_eq!(read_double(b"0x1p-1075"), Ok(0.0));
        assert_eq!(read_double(b"0x1.8p-1075"), Ok(f64::from_bits(1)));
        assert_eq!(
            read_double(b"-0x1p9999999999999999999999"),
            Ok(f64::NEG_INFINITY)
        );
    }
}
