//! What a name that is none may have meant.

/// The name that takes the fewest changes of a letter to come to from `given`, for errors; of equal ones
/// the first. `None` if there are no names.
pub fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Beyond the length of any name the changes say nothing, and counting them takes long.
    let given: String = given.chars().take(256).collect();
    names.into_iter().min_by_key(|name| strsim::damerau_levenshtein(&given, name))
}

/// As [`nearest`], but `None` too where that name is so different that nobody can have meant it: for
/// questions such as "did you mean". Capitals count as small letters.
pub fn similar<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    let most = given.chars().count().max(3) / 3;
    nearest(&given, names)
        .filter(|name| strsim::damerau_levenshtein(&given, &name.to_lowercase()) <= most)
}

#[cfg(test)]
mod tests {
    use super::{nearest, similar};

    #[test]
    fn a_slip_leads_back_to_the_name() {
        let ops = ["rope", "rmsnorm", "layernorm"];
        assert_eq!(nearest("rmsnrom", ops), Some("rmsnorm"));
        assert_eq!(nearest("LayerNorm", ops), Some("layernorm"));
        assert_eq!(nearest("rope", ops), Some("rope"));
        assert_eq!(nearest("rope", []), None);
    }

    #[test]
    fn what_nobody_can_have_meant_is_not_similar() {
        let ops = ["rope", "rmsnorm", "layernorm", "gelu"];
        for slip in ["rmsnrom", "RMSNorm", "rms_norm", "rmsnor"] {
            assert_eq!(similar(slip, ops), Some("rmsnorm"), "{slip}");
        }
        for other in ["softmax", "affine", "x", "", "norm"] {
            assert_eq!(similar(other, ops), None, "{other}");
        }
    }
}
