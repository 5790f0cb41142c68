//! Inputs and outputs of a context, whatever computes.

use ruvllm_host::graph::{GraphError, GraphValue};
use ruvllm_manifest::GraphEntry;

/// The values of one context.
pub(crate) struct Slots<'g> {
    entry: &'g GraphEntry,
    inputs: Vec<Option<GraphValue>>,
    outputs: Vec<GraphValue>,
}

impl<'g> Slots<'g> {
    pub(crate) fn new(entry: &'g GraphEntry) -> Self {
        Self { entry, inputs: vec![None; entry.inputs.len()], outputs: Vec::new() }
    }

    pub(crate) fn set_input(&mut self, index: usize, value: GraphValue) -> Result<(), GraphError> {
        let (Some(slot), Some(tensor)) = (self.inputs.get_mut(index), self.entry.inputs.get(index))
        else {
            let reason = format!("the graph has {} inputs, counted from 0", self.inputs.len());
            return Err(GraphError::Input { name: index.to_string(), reason });
        };
        value.check(tensor, self.entry)?;
        *slot = Some(value);
        Ok(())
    }

    /// All inputs; those of the last computation are gone with its outputs.
    pub(crate) fn take_inputs(&mut self) -> Result<Vec<GraphValue>, GraphError> {
        self.outputs.clear();
        if let Some(missing) = self.inputs.iter().position(Option::is_none) {
            let name = self.entry.inputs[missing].name.clone();
            return Err(GraphError::Input { name, reason: "it was not set".to_owned() });
        }
        Ok(self.inputs.iter_mut().filter_map(Option::take).collect())
    }

    /// Takes outputs, which must be as the entry says and have no more bytes than `most`.
    pub(crate) fn set_outputs(
        &mut self,
        outputs: Vec<GraphValue>,
        most: usize,
    ) -> Result<(), GraphError> {
        fits(outputs.iter().map(|value| value.bytes().len()), most)?;
        for (value, tensor) in outputs.iter().zip(&self.entry.outputs) {
            let failed = |error: GraphError| GraphError::Failed {
                reason: format!("of its outputs, as the manifest has them: {error}"),
            };
            value.check(tensor, self.entry).map_err(failed)?;
        }
        self.outputs = outputs;
        Ok(())
    }

    pub(crate) fn output(&self, index: usize) -> Result<&GraphValue, GraphError> {
        self.outputs.get(index).ok_or(GraphError::Output { index })
    }
}

/// Whether outputs of these sizes have no more bytes together than `most`.
///
/// # Errors
/// [`GraphError::TooLarge`].
pub(crate) fn fits(sizes: impl Iterator<Item = usize>, most: usize) -> Result<(), GraphError> {
    match sizes.fold(0, usize::saturating_add) > most {
        true => Err(GraphError::TooLarge { bytes: most }),
        false => Ok(()),
    }
}
