//! Which products are counted.

use crate::{emulated, table};
use clap::Parser;
use ruvllm_abi::DType;
use ruvllm_instructions::{Matrix, Ready};
use ruvllm_native::Isa;
use ruvllm_native::gemm::{method, weight_types};
use std::path::PathBuf;

/// An error on its way to the user.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// Rows of weights: whole tiles of every height.
pub(crate) const WEIGHT_ROWS: usize = 32;

/// What such a row has less and more of: whole blocks of every type.
pub(crate) const COLS: [usize; 2] = [256, 512];

/// Counts the instructions of matrix products for each 32 weights and row of activations.
#[derive(Parser)]
struct Cli {
    /// Weight types, such as `q4_0`; all when absent.
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    types: Vec<DType>,
    /// Instruction sets, such as `avx2-vnni`; when absent all that there are, without portable code.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = isa)]
    isa: Vec<Isa>,
    /// Rows of activations. 40 are whole tiles of integers of every width, as most of a prompt is.
    #[arg(long, value_name = "ROWS", value_delimiter = ',', default_value = "1,4,8,16,40")]
    rows: Vec<usize>,
    /// This program built for 64-bit Arm and Linux: what it computes under `qemu-aarch64` is counted as well.
    #[arg(long, value_name = "PATH")]
    emulated: Option<PathBuf>,
    /// The processor that is emulated.
    #[arg(long, value_name = "NAME", default_value = "max")]
    cpu: String,
    /// Leave marks in the log of an emulator, which another process counts by; that starts this itself.
    #[arg(long, hide = true)]
    marked: bool,
}

fn isa(name: &str) -> Result<Isa, String> {
    Isa::named(name).ok_or_else(|| "no such instruction set; `ruvllm doctor` lists them".to_owned())
}

/// Runs the program.
///
/// # Errors
/// Instructions cannot be counted here.
pub(crate) fn main() -> Result<(), Failure> {
    let cli = Cli::parse();
    if cli.marked {
        let marked = |product: &mut Ready| {
            emulated::marked(|| product.call());
            Ok(0)
        };
        for Product { dtype, isa, m, cols, .. } in cli.products(marked)? {
            println!("{dtype} {isa} {m} {cols}");
        }
        return Ok(());
    }
    #[cfg(target_arch = "x86_64")]
    let mut products = cli.products(|product| Ok(crate::stepped::count(|| product.call())?))?;
    #[cfg(not(target_arch = "x86_64"))]
    let mut products = Vec::new();
    if let Some(program) = &cli.emulated {
        products.extend(emulated::count(program, &cli.cpu)?);
    }
    if products.is_empty() {
        return Err(
            "nothing was counted; `--emulated` names a program for an emulated processor".into()
        );
    }
    table::print(&products);
    Ok(())
}

impl Cli {
    /// Each product that was asked for, with its instructions by `count`.
    fn products(
        &self,
        count: impl Fn(&mut Ready) -> Result<u64, Failure>,
    ) -> Result<Vec<Product>, Failure> {
        let wanted = |isa: &&Isa| match &self.isa[..] {
            [] => **isa != Isa::Scalar,
            isas => isas.contains(isa),
        };
        let mut products = Vec::new();
        for dtype in weight_types().filter(|of| self.types.is_empty() || self.types.contains(of)) {
            for cols in COLS {
                for &isa in Isa::available().iter().filter(wanted) {
                    let matrix = Matrix::new(isa, dtype, WEIGHT_ROWS, cols);
                    for &m in &self.rows {
                        // Else it is the product of another instruction set.
                        if method(dtype, isa, m, false, true)
                            .is_some_and(|of| of.instructions == isa.name())
                        {
                            let instructions = count(&mut matrix.product(m))?;
                            products.push(Product { dtype, isa, m, cols, instructions });
                        }
                    }
                }
            }
        }
        Ok(products)
    }
}

/// A product that was counted.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub(crate) dtype: DType,
    pub(crate) isa: Isa,
    /// Rows of activations.
    pub(crate) m: usize,
    /// Weights of a row.
    pub(crate) cols: usize,
    pub(crate) instructions: u64,
}

impl Product {
    /// The product that a process named in `line`.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn read(line: &str, instructions: u64) -> Result<Product, Failure> {
        let [dtype, name, m, cols] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(format!("not a product: {line}").into());
        };
        Ok(Product {
            dtype: dtype.parse()?,
            isa: isa(name)?,
            m: m.parse()?,
            cols: cols.parse()?,
            instructions,
        })
    }
}
