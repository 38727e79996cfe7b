//! Integers in JSON, in any notation.

/// The whole number that `number` is: `3.0` and `1e2` are 3 and 100, as a Kubernetes server writes them. A client that was made
/// from Go types reads no fraction into a whole number, and one such object would blind it to the whole list.
pub(super) fn whole(number: f64) -> Option<i64> {
    /// 2^63, exactly; the least number is as far on the other side.
    const TWO_POW_63: f64 = 9_223_372_036_854_775_808.0;
    #[expect(clippy::cast_possible_truncation, reason = "whole, and in range")]
    (number.fract() == 0.0 && (-TWO_POW_63..TWO_POW_63).contains(&number)).then_some(number as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// APP-37
    #[test]
    fn a_whole_number_has_no_fraction_and_others_stay() {
        for (number, expected) in [
            (3.0, Some(3)),
            (1e2, Some(100)),
            (-0.0, Some(0)),
            (0.5, None),
            (-9_223_372_036_854_775_808.0, Some(i64::MIN)),
            (9_223_372_036_854_775_808.0, None),
            (f64::NAN, None),
        ] {
            assert_eq!(whole(number), expected, "{number}");
        }
    }
}
