//! Which provider computes which format in this build.

use ruvllm_host::graph::{GraphError, GraphProvider};
use ruvllm_manifest::GraphFormat;

/// The provider of a format, in this process.
///
/// # Errors
/// [`GraphError::Refused`] where the build has none.
pub(crate) fn of(format: GraphFormat) -> Result<Box<dyn GraphProvider>, GraphError> {
    match format {
        #[cfg(feature = "onnx")]
        GraphFormat::Onnx => Ok(Box::new(crate::OnnxProvider)),
        #[cfg(feature = "encoder")]
        GraphFormat::Gguf => Ok(Box::new(crate::GgufProvider)),
        #[cfg(not(all(feature = "encoder", feature = "onnx")))]
        other => Err(GraphError::Refused {
            reason: format!("this program was built without what computes {other} graphs"),
        }),
    }
}
