//! What a name that is none may have meant.

/// The name that takes the fewest changes of a letter to come to from `given`, for errors; of equal ones
/// the first. `None` if there are no names.
pub fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Beyond the length of any name the changes say nothing, and counting them takes long.
    let given: String = given.chars().take(256).collect();
    names.into_iter().min_by_key(|name| strsim::damerau_levenshtein(&given, name))
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_slip_leads_back_to_the_name() {
        let ops = ["rope", "rmsnorm", "layernorm"];
        assert_eq!(nearest("rmsnrom", ops), Some("rmsnorm"));
        assert_eq!(nearest("LayerNorm", ops), Some("layernorm"));
        assert_eq!(nearest("rope", ops), Some("rope"));
        assert_eq!(nearest("rope", []), None);
    }
}
