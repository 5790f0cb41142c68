//! Calls kernels of the core pack directly, by operation and by id, with shape-checked tensors.
//!
//! ```console
//! cargo run --release --example call_kernel
//! ```

use ruvllm::KernelSet;
use ruvllm::host::{ParamValue, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let kernels = KernelSet::builder().build()?;
    let host = kernels.host();
    let snapshot = host.snapshot();
    let mut worker = host.worker()?; // one per thread

    let x = Tensor::from_f32([2, 4], &[1.0, 2.0, 3.0, 4.0, -1.0, 0.0, 1.0, 0.0]).ok_or("shape")?;
    let weight = Tensor::from_f32([4], &[1.0; 4]).ok_or("shape")?;
    let inputs = [x, weight];
    let eps = [("eps", ParamValue::F32(1e-5))];

    // By operation: whichever kernel the registry selects, with fallback.
    let y = worker.call_generic(&snapshot, "rmsnorm", &inputs, &eps)?;
    println!("{:?} {:?}", y[0].shape(), y[0].to_f32());

    // By id: that kernel or none.
    let z = worker.call_generic(&snapshot, "native:rmsnorm_f32", &inputs, &eps)?;
    println!("{:?} {:?}", z[0].shape(), z[0].to_f32());

    // A wrong shape is refused before any kernel sees it.
    let wrong = [inputs[0].clone(), Tensor::from_f32([3], &[1.0; 3]).ok_or("shape")?];
    if let Err(error) = worker.call_generic(&snapshot, "rmsnorm", &wrong, &eps) {
        println!("{error}");
    }
    Ok(())
}
