//! The module asks for a huge table.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

#[test]
fn a_table_beyond_the_limit_is_refused() {
    for table in ["(table 4000000000 funcref)", "(table 0 4000000000 funcref)"] {
        let module = Module { fields: table.to_owned(), ..Module::default() };
        assert_eq!(refused(&pack(&module)), ["table_over_limit"], "{table}");
    }
}
