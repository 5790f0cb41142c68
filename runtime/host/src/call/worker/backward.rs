//! Calls for gradients. A call for gradients is a call: this only puts it together.

use super::{Worker, explained, find, shape};
use crate::CallError;
use crate::op::call::{Gradients, OpCall, Operand, Output};
use crate::op::tensor::{Tensor, bind};
use crate::registry::{OpSlot, RegistrySnapshot};
use ruvllm_manifest::ParamValue;

impl Worker {
    /// Gives the gradients of an operation by the inputs of a call: of some number, such as a loss, whose
    /// gradient by the call's output is `grad_output`.
    ///
    /// It goes to the same chain as [`Worker::call`], from which only those answer that have a
    /// `kernel_backward`, in the chain's order; the native twin ends it. Instances, deadlines, fences, scopes,
    /// cross-checks and failures are those of any call. Gradients are binary32: operations of other element
    /// types have none. A large call is cut into runs of rows, by its sizes alone, and what they give of a sum
    /// over rows is added up in order, so the same call to the same kernel gives the same bits.
    ///
    /// # Errors
    /// As [`Worker::call`]; [`CallError::Shape`] also where the operation has no gradient. The gradients may
    /// hold parts of a result then.
    pub fn backward(
        &mut self,
        snap: &RegistrySnapshot,
        slot: OpSlot,
        call: &OpCall<'_>,
        grad_output: &[f32],
        gradients: Gradients<'_>,
    ) -> Result<(), CallError> {
        self.call(snap, slot, &call.clone().backward(Operand::f32(grad_output)), gradients)
    }

    /// The gradients of a generic call by its inputs that have some, in order; `grad_output` is that of its
    /// output. Names, shapes and params are those of [`Worker::call_generic`].
    ///
    /// # Errors
    /// As [`Worker::call_generic`] and [`Worker::backward`].
    pub fn backward_generic(
        &mut self,
        snap: &RegistrySnapshot,
        kernel_or_op: &str,
        inputs: &[Tensor],
        params: &[(&str, ParamValue)],
        grad_output: &Tensor,
    ) -> Result<Vec<Tensor>, CallError> {
        if snap.host != self.host.id {
            return Err(CallError::ForeignSnapshot);
        }
        let target = find(snap, kernel_or_op, inputs)?;
        let fail = |detail: String| shape(target.key, detail);
        if let [alone] = target.chain
            && !alone.has_backward()
        {
            return Err(fail(format!("{} has no kernel_backward", alone.id())));
        }
        let bound = bind(target.plan, inputs, params).map_err(fail)?;
        let call = bound.backward(inputs, grad_output).map_err(fail)?;
        let gradients = inputs.iter().take(target.plan.gradients().len());
        let mut gradients: Vec<Vec<f32>> =
            gradients.map(|input| vec![0.0; input.bytes().len() / size_of::<f32>()]).collect();
        let mut parts = gradients.iter_mut().map(Vec::as_mut_slice);
        let (a, b) = (parts.next().unwrap_or_default(), parts.next());
        let mut out = Output::Gradients(Gradients { a, b });
        let Some(bytes) = target.plan.check(&call, &out) else {
            return Err(fail(target.plan.objection(&call, &out)));
        };
        if let Err(error) = self.ask(&target, &call, &bytes, &mut out) {
            return Err(explained(&target, &call, error));
        }
        let of = inputs.iter().zip(gradients);
        Ok(of.filter_map(|(input, values)| Tensor::from_f32(input.shape(), &values)).collect())
    }
}
