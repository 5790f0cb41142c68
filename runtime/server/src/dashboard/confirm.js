// Buttons that ask once more, in place, before they change what serves.

import { element, setText } from "./dom.js";

/**
 * Buttons for `choices`, each `{ label, question(), act() }`: `act` does it, and what it throws is shown as it
 * is. Without a `question`, nobody is asked: it changes nothing that serves. `strong` is for the one that is meant to be pressed, `beside` a node after the button, `working` what is
 * said meanwhile.
 */
export function confirming(choices) {
  const line = element("div", { class: "actions" });
  const error = element("p", { class: "error", role: "alert" });
  const buttons = choices.map((choice, i) => {
    const kind = choice.strong ? "strong" : "plain";
    const pressed = () => (choice.question ? ask(choice, i) : begin(choice, i));
    return element("button", { type: "button", class: kind, click: pressed }, choice.label);
  });
  const offer = () => line.replaceChildren(...choices.flatMap(({ beside }, i) => (beside ? [buttons[i], beside] : [buttons[i]])));

  const backTo = (at) => () => {
    offer();
    buttons[at].focus();
  };

  async function run(choice, back) {
    try {
      await choice.act();
      offer();
    } catch (thrown) {
      setText(error, thrown.message);
      back();
    }
  }

  function begin(choice, at) {
    setText(error, "");
    const working = element("span", { class: "question", role: "status" }, choice.working ?? "Working …");
    line.replaceChildren(element("div", { class: "confirm" }, working));
    run(choice, backTo(at));
  }

  function ask(choice, at) {
    setText(error, "");
    const back = backTo(at);
    const yes = element("button", { type: "button", class: "strong" }, choice.label);
    const no = element("button", { type: "button", class: "plain", click: back }, "Cancel");
    const question = element("span", { class: "question" }, choice.question());
    const keys = (event) => event.key === "Escape" && back();
    const group = element("div", { class: "confirm", role: "group", "aria-label": choice.question(), keydown: keys }, question, yes, no);
    yes.addEventListener("click", () => {
      yes.disabled = no.disabled = true;
      setText(question, choice.working ?? "Working …");
      run(choice, back);
    });
    line.replaceChildren(group);
    yes.focus();
  }

  offer();
  return element("div", { class: "confirming" }, line, error);
}
