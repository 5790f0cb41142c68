//! The table that is printed.

use crate::program::{COLS, Product, WEIGHT_ROWS};

/// Prints the instructions for each 32 weights and row of activations, as Markdown.
pub(crate) fn print(products: &[Product]) {
    let isas = distinct(products.iter().map(|product| product.isa));
    let names: String = isas.iter().map(|isa| format!(" {isa} |")).collect();
    println!("| rows | weights |{names}");
    println!("|---:|---|{}", "---:|".repeat(isas.len()));
    for m in distinct(products.iter().map(|product| product.m)) {
        for dtype in distinct(products.iter().map(|product| product.dtype)) {
            let cells = isas.iter().map(|isa| {
                let [less, more] = COLS.map(|cols| {
                    let same =
                        |of: &&Product| (of.dtype, of.isa, of.m, of.cols) == (dtype, *isa, m, cols);
                    products.iter().find(same).map(|product| product.instructions as f64)
                });
                let numbers = m * WEIGHT_ROWS * (COLS[1] - COLS[0]);
                match (less, more) {
                    (Some(less), Some(more)) => {
                        format!(" {:.2} |", (more - less) * 32.0 / numbers as f64)
                    }
                    _ => " |".to_owned(),
                }
            });
            println!("| {m} | {dtype} |{}", cells.collect::<String>());
        }
    }
}

/// Each item once, in the order of their first occurrence.
fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for item in items {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct
}
