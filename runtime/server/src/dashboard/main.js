// The page: every part takes from the figures what it shows.

import "./chat.js";
import { onFigures, onTrouble, start } from "./figures.js";
import * as kernels from "./kernels.js";
import * as memory from "./memory.js";
import * as overview from "./overview.js";
import * as packs from "./packs.js";
import * as timeline from "./timeline.js";

onFigures(overview.show);
onFigures(kernels.show);
onFigures(memory.show);
// Shows and hides the panels that the next two fill.
onFigures(packs.show);
onFigures(timeline.showWatch);
onFigures(timeline.show);
onTrouble(overview.showTrouble);
start();
