"""Words and small facts that the tales draw on: who can live where, what breaks and how it is mended.

Every entry is data; `plots.py` gives it a plot. Text may hold alternations `[a|b]` and slots `{h}`,
which `corpus.py` expands.
"""

GIRLS = (
    "Lily Anna Mia Rosa Clara Nora Ella Ivy Daisy Lucy Sofia Maya Ruby Hazel Alice Emma Grace Molly Tess Wren "
    "Zoe Kate Jane Nina Ada Eva Poppy June Sara Amy"
).split()
BOYS = (
    "Tom Ben Max Sam Leo Jack Finn Noah Oscar Henry Theo Milo Hugo Peter Luke Adam Felix Oliver Will Jonah Tim "
    "Carl Eli Owen Paul Robin Simon Toby Walter Dan"
).split()
SHE_BEASTS = "Bella Nutmeg Pearl Willow Dot Honey Luna Olive Bramble Penny Snowy Tilly Minnie Coco Fern".split()
HE_BEASTS = "Pip Bruno Rusty Nibbles Otto Barnaby Whiskers Chester Dash Gus Monty Scout Basil Hopper Fluff".split()
BEASTS = (
    "rabbit fox squirrel mouse hedgehog badger otter bear frog duck beaver kitten goat mole turtle pony lamb raccoon "
    "puppy deer"
).split()

CHILD_TRAITS = "kind curious clever shy brave cheerful quiet gentle lively thoughtful stubborn dreamy honest playful".split()
HOMES = [
    "in a small house at the edge of the forest",
    "in a white cottage by the sea",
    "in a quiet village between two hills",
    "on a farm with a red barn",
    "in a tall house near the market",
    "beside an old mill",
    "in a valley full of flowers",
    "on a little island",
    "at the foot of a green mountain",
    "near a wide, slow river",
    "in a cabin among the pine trees",
    "at the end of a long, winding lane",
]
BEAST_HOMES = [
    "in a warm burrow under an oak tree",
    "in a hollow log near the stream",
    "at the edge of a wide green meadow",
    "in a cosy den beneath the roots",
    "in a tiny house made of leaves and stones",
    "beside a pond full of lilies",
    "deep in the quiet forest",
    "under the old stone bridge",
    "on a hill covered with clover",
]
HOBBIES = [
    "sing", "climb trees", "collect shiny stones", "paint pictures", "dance in the rain", "look at the stars",
    "listen to stories", "pick flowers", "build little boats", "watch the clouds", "bake cakes", "run through the grass",
    "count the birds", "play hide and seek", "ask questions", "draw maps", "splash in puddles", "make up songs",
]
# (elder, pronoun set) for children's tales and for animals' tales
ELDERS = [
    ("Grandma Rose", "she"), ("Grandpa Joe", "he"), ("Aunt May", "she"), ("Uncle Fred", "he"), ("Mrs. Brown", "she"),
    ("Mr. Finch", "he"), ("the old baker", "he"), ("the old fisherman", "he"), ("the miller", "he"),
    ("the kind teacher", "she"), ("the blacksmith", "he"), ("the gardener", "she"),
]
BEAST_ELDERS = [
    ("Old Owl", "he"), ("Mother Hen", "she"), ("Grandfather Tortoise", "he"), ("the wise old crow", "she"),
    ("Granny Badger", "she"), ("Mr. Toad", "he"), ("Mrs. Goose", "she"), ("the grey heron", "he"),
]
# place, where, whereto
PLACES = [
    ("the river", "by the river", "down to the river"),
    ("the forest", "in the forest", "into the forest"),
    ("the meadow", "in the meadow", "across the meadow"),
    ("the market", "at the market", "to the market"),
    ("the beach", "on the beach", "down to the beach"),
    ("the old bridge", "under the old bridge", "over to the old bridge"),
    ("the apple orchard", "in the apple orchard", "through the apple orchard"),
    ("the pond", "beside the pond", "along the path to the pond"),
    ("the windmill", "behind the windmill", "up to the windmill"),
    ("the barn", "inside the barn", "back to the barn"),
    ("the hill", "on top of the hill", "up the hill"),
    ("the garden", "in the garden", "out into the garden"),
    ("the stone wall", "beside the stone wall", "along the stone wall"),
    ("the big oak tree", "under the big oak tree", "to the big oak tree"),
    ("the harbour", "at the harbour", "along the road to the harbour"),
    ("the well", "next to the well", "over to the well"),
]
COLOURS = "red blue green yellow silver golden white purple orange pink".split()
TREASURES = [  # small things one may lose
    "{c} ball", "{c} kite", "{c} scarf", "{c} hat", "wooden horse", "{c} ribbon", "little drum", "tin whistle",
    "brass key", "{c} button", "toy boat", "music box", "{c} marble", "wooden spoon", "old map", "silver bell",
    "picture book", "{c} mitten", "cloth doll", "glass bead", "paint brush", "lucky coin", "{c} umbrella", "small lantern",
]
HIDDEN = [  # where a lost thing turns up, and how it got there
    ("a magpie's nest", "A magpie had seen it shine and carried it off", "I thought it was a star that fell down"),
    ("the bottom of the basket", "It had slipped under the apples", ""),
    ("a hole between the roots", "A young squirrel had hidden it with the nuts", "I only wanted to keep it safe"),
    ("the hay in the barn", "It had fallen there during the dance", ""),
    ("the pocket of an old coat", "{He} had put it there on the day of the first rain", ""),
    ("the branches of a willow", "The wind had blown it up there in the night", ""),
    ("a puppy's bed", "The puppy had carried it home to play", "Woof"),
    ("the reeds near the water", "The stream had washed it down the valley", ""),
    ("a crack in the wall", "A tiny mouse had been using it as a roof for her babies", "It kept the rain off my little ones"),
]
FOODS = [
    "a warm apple pie", "a basket of cherries", "a loaf of sweet bread", "a bag of nuts", "a plate of honey cakes",
    "a bowl of strawberries", "a round yellow cheese", "a pot of vegetable soup", "a jar of plum jam", "six ripe pears",
    "a bag of ginger cookies", "a big slice of melon", "a stack of pancakes",
]
WEATHER = [
    "The sun was warm and the sky was blue.", "A soft wind moved the grass.", "Small white clouds floated over the hills.",
    "The air smelled of rain and wet leaves.", "Frost sparkled on every roof.", "Birds sang in the tall trees.",
    "Yellow leaves danced along the path.", "The first snow of winter lay on the ground.", "Bees hummed among the flowers.",
    "A thin mist hung over the fields.", "The morning was bright and cool.",
]
FEARS = [
    dict(fear="the dark", why="In the dark, every [coat|chair|shadow] looked like a [monster|wolf|giant]",
         trouble="{f} had followed a firefly into the old cave and could not find the way out",
         act="{h} lit a small lantern, [held it high|took a deep breath], and walked into the black cave",
         hard="The flame shook, and [water dripped|something rustled] in the corner, but {he} kept calling {f}'s name",
         learn="The dark is only the world with its eyes closed"),
    dict(fear="deep water", why="The [pond|lake] looked cold, and nobody could see the bottom",
         trouble="{f}'s little boat had lost its oars and was drifting toward the waterfall",
         act="{h} grabbed a long log, jumped into the water, and kicked as hard as {he} could",
         hard="The cold water splashed into {his} [eyes|nose], but {he} did not let go of the log",
         learn="The water carried me when I stopped fighting it"),
    dict(fear="high places", why="Even the [third step of the ladder|kitchen table] made {his} knees shake",
         trouble="{f} was sitting at the top of a tall pine tree, and the branch was beginning to crack",
         act="{h} tied a rope around {his} waist and climbed up, one branch at a time",
         hard="{His} legs trembled and the wind pushed, but {he} did not look down",
         learn="From the top I could see the whole valley, and it was beautiful"),
    dict(fear="thunder", why="At the first rumble {he} always hid under the [bed|blanket|table]",
         trouble="{f} was caught under the bridge, and the river was rising fast in the storm",
         act="{h} ran out into the rain with a strong rope while the thunder roared",
         hard="A flash lit the sky, and {his} heart jumped, but {he} threw the rope again and again",
         learn="Thunder is loud, but it is only a drum in the sky"),
    dict(fear="the big black dog", why="The dog barked at everyone who passed the gate",
         trouble="{f} had fallen into the ditch behind the dog's gate and twisted a foot",
         act="{h} opened the gate slowly and held out a piece of bread",
         hard="The dog growled at first, and then {he} saw the sharp thorn in its paw and gently pulled it out",
         learn="He was not angry at all, he was only hurting"),
    dict(fear="speaking in front of others", why="When people looked at {him}, {his} cheeks grew hot and the words flew away",
         trouble="{f} had seen a crack in the dam, but {fhe} had lost {fhis} voice from shouting",
         act="{h} climbed onto a barrel in the middle of the square and cried, \"Run to the hill! The dam is breaking!\"",
         hard="Everyone turned and stared, and {his} voice shook, but {he} said it again, louder than before",
         learn="My voice was small, but it was big enough"),
    dict(fear="the deep snow", why="Once {he} had sunk into it up to {his} chin",
         trouble="{f} had not come home, and fresh snow was covering every track",
         act="{h} tied two flat baskets under {his} feet and set out across the white field",
         hard="The snow stung {his} face and the path was gone, but {he} followed the faint sound of {f}'s bell",
         learn="The snow is soft to those who walk with care"),
]
BROKEN = [
    dict(thing="the old clock", cause="a mouse had built a nest between the wheels", mend="lifted the nest out with two spoons and put a drop of oil on each wheel",
         extra="{He} gave the mouse a matchbox full of wool for her new home", works="Tick, tock, went the clock, and it struck twelve"),
    dict(thing="the wooden bridge", cause="the spring flood had torn away three planks", mend="carried three new planks from the mill and nailed them down one by one",
         extra="The hammer was heavy, and {his} arms ached", works="The bridge was strong again, and a cart of apples rolled safely across"),
    dict(thing="the blue teapot", cause="it had slipped from the wet table and lost its handle", mend="glued the handle with great care and painted a golden line along the crack",
         extra="{He} held the pieces together and counted slowly to five hundred", works="The tea stayed hot, and not one drop fell out"),
    dict(thing="the music box", cause="a tiny screw had fallen out", mend="made a new screw from a bit of wire",
         extra="{He} searched the floor with a candle, but the old screw was gone", works="The box played its sweet song again, note after note"),
    dict(thing="the big kite", cause="a thorn bush had torn a long hole in it", mend="sewed a bright patch over the hole and added a longer tail",
         extra="The needle pricked {his} finger twice, but {he} did not stop", works="The kite flew higher than the tallest tree"),
    dict(thing="the mill wheel", cause="a heavy log was stuck under it", mend="pushed a long pole under the log and rolled it away",
         extra="{He} slipped in the mud and got up again", works="The wheel turned, the stones hummed, and soft flour filled the sacks"),
    dict(thing="the little boat", cause="a sharp rock had made a hole in its side", mend="covered the hole with a flat board and warm tar",
         extra="The tar was sticky, and {his} fingers were black for a week", works="The boat floated on the lake, as dry as a bone inside"),
    dict(thing="the rocking chair", cause="one leg had cracked in the cold", mend="cut a new leg from an ash branch and rubbed it smooth with sand",
         extra="The first leg was too short, so {he} cut another one", works="The chair rocked back and forth without a single squeak"),
    dict(thing="the cart", cause="a wheel had come off on the stony road", mend="lifted the cart with a long beam and put the wheel back with a new pin",
         extra="{He} carved the pin from hard oak wood", works="The cart rolled down the lane as if it were new"),
    dict(thing="the village bell", cause="its rope had rotted and snapped", mend="twisted a new rope from long grass and old string",
         extra="{He} twisted until the moon came up", works="Ding, dong, rang the bell, and all the birds flew up from the roof"),
    dict(thing="the garden gate", cause="a goat had kicked it off its hinges", mend="straightened the hinges with a hammer and hung the gate again",
         extra="The goat watched {him} and chewed on {his} sleeve", works="The gate swung open and shut with a soft click"),
    dict(thing="the lamp on the pier", cause="the storm had broken its glass", mend="cleaned the frame and fitted a new piece of glass",
         extra="{He} worked quickly, because the fishing boats were still at sea", works="The lamp shone over the water, and every boat found the way home"),
]
SKILLS = [
    dict(skill="swim", fail="{he} sank like a stone and came up coughing", tip="Breathe slowly and let the water hold you",
         drill="floated on {his} back and kicked {his} feet", win="swam all the way across the pond"),
    dict(skill="whistle", fail="only a puff of air came out", tip="Make your lips round, like a little berry",
         drill="blew and blew until {his} cheeks hurt", win="whistled a tune so clear that a bird answered"),
    dict(skill="skate", fail="{his} feet flew up and {he} sat down hard on the ice", tip="Bend your knees and look ahead, not at your feet",
         drill="slid along the edge of the frozen pond", win="glided in a big circle without falling"),
    dict(skill="play the flute", fail="it squeaked like an angry goose", tip="Play one note until it is your friend, and then the next",
         drill="played the same three notes by the window", win="played a whole song, and everyone clapped"),
    dict(skill="bake bread", fail="the loaf came out as hard as a brick", tip="Bread needs warm hands and a long rest",
         drill="mixed the flour, the water and the salt", win="pulled a soft, golden loaf out of the oven"),
    dict(skill="row a boat", fail="the boat only turned around and around", tip="Pull both oars together, like two wings",
         drill="rowed along the shore and counted each stroke", win="rowed straight across the lake and back"),
    dict(skill="fly a kite", fail="the kite fell on {his} head", tip="Wait for the wind, and let the string run",
         drill="ran up and down the hill with the string in {his} hand", win="sent the kite so high that it looked like a dot"),
    dict(skill="juggle", fail="the apples rolled away in all directions", tip="Begin with one, and never hurry",
         drill="threw one apple, then two, then three", win="kept four apples dancing in the air"),
    dict(skill="dance", fail="{he} stepped on {his} own toes and fell into the flowers", tip="Do not count the steps, listen to the drum",
         drill="danced with a broom in the kitchen", win="danced through the whole feast with a smile"),
    dict(skill="draw a horse", fail="the horse looked like a potato with legs", tip="Look at the horse more than at the paper",
         drill="sat by the fence and drew until the light was gone", win="drew a horse that seemed ready to gallop off the page"),
    dict(skill="tie a good knot", fail="the rope fell open at the first pull", tip="The rabbit comes out of the hole, goes around the tree, and back down again",
         drill="tied the rope to the fence a hundred times", win="tied a knot so strong that it held a boat in the storm"),
]
CONTESTS = [
    dict(event="the great race", prize="a silver cup", prep="ran up and down the hill every morning", mishap="stumbled over a root and fell",
         help="stopped, turned back, and helped {fhim} up", end="They crossed the line together, side by side"),
    dict(event="the boat race", prize="a flag with a golden fish", prep="painted {his} boat and sewed a new sail", mishap="hit a rock, and {fhis} boat began to sink",
         help="turned {his} boat around and pulled {fhim} aboard", end="They came in last, wet and laughing"),
    dict(event="the cake contest", prize="a copper pan", prep="tried a new recipe every day", mishap="dropped {fhis} eggs on the floor",
         help="gave {fhim} half of {his} own eggs", end="Both cakes rose high and smelled wonderful"),
    dict(event="the kite festival", prize="a ball of silk string", prep="built a kite in the shape of a dragon", mishap="broke {fhis} string, and the kite flew into a tree",
         help="climbed the tree and brought the kite down", end="In the last round, two kites danced in the sky together"),
    dict(event="the singing contest", prize="a little harp", prep="sang in the barn to the cows", mishap="forgot the words in the middle of {fhis} song",
         help="began to hum the tune softly until {fhe} remembered", end="They sang the last verse together, and the crowd stood up"),
    dict(event="the snowman contest", prize="a warm wool blanket", prep="gathered buttons, sticks and a fine carrot", mishap="leaned too hard, and {fhis} snowman fell to pieces",
         help="rolled a new ball of snow for {fhim}", end="At noon two tall snowmen stood hand in hand"),
    dict(event="the pumpkin fair", prize="a shiny new spade", prep="watered {his} pumpkin every evening", mishap="found that worms had eaten {fhis} pumpkin",
         help="cut {his} pumpkin in two and gave {fhim} half", end="They made so much soup that the whole fair could eat"),
]
CURES = [
    ("the moon flower", "grows only beside the silver lake"), ("a cup of water from the crystal spring", "flows under the snowy mountain"),
    ("golden honey", "is made by the bees of the high cliffs"), ("the blue herb", "grows behind the great waterfall"),
    ("a fallen star leaf", "can be found in the oldest part of the forest"), ("red winter berries", "grow on the far side of the hills"),
]
ROAD_MEETINGS = [
    dict(who="a hungry bear", need="The bear had not eaten for three days", gift="gave him all the bread in {his} bag",
         back="the bear carried {him} on his broad back through the cold night"),
    dict(who="an old woman with a heavy basket", need="Her back hurt, and the road was steep", gift="carried the basket to the top of the hill",
         back="the old woman showed {him} a secret path between the rocks"),
    dict(who="a bird with a hurt wing", need="It could not reach its nest", gift="wrapped the wing with a strip of {his} scarf and lifted it back into the nest",
         back="the bird flew ahead and showed {him} the way through the mist"),
    dict(who="a beaver with a broken dam", need="The water was washing his house away", gift="helped him carry branches until the dam was whole",
         back="the beaver laid a log over the wild river so that {he} could cross"),
    dict(who="a fox caught in a net", need="The ropes were tight around her legs", gift="cut the ropes one after the other",
         back="the fox led {him} safely around the deep swamp"),
    dict(who="a lost little ant", need="It could not find its way home", gift="carried it on a leaf back to its hill",
         back="a thousand ants pushed away the stone that blocked the path"),
    dict(who="a thirsty old donkey", need="The bucket in the well was too deep for him", gift="pulled up the bucket and let him drink",
         back="the donkey carried {him} over the hot, dusty plain"),
]
MAGIC = [
    ("a small brass lamp", "rubbed the dust off it", "a thin blue smoke rose up"), ("a pink shell", "held it to {his} ear", "a voice as soft as the sea spoke"),
    ("a golden feather", "picked it up", "it began to glow and hum"), ("a silver bell", "rang it once", "a tiny lady with wings appeared"),
    ("a strange green stone", "warmed it in {his} hand", "it opened like an egg, and a little dragon sat inside"),
    ("an old wooden flute", "played one note", "the trees bowed and began to whisper"),
    ("a star-shaped key", "turned it in the air", "a door of light opened"),
]
NEEDS = [  # a need in the village, and what comes of wishing it away
    ("the well had been dry for weeks, and the flowers were dying", "Please fill the well for everyone", "Clear water bubbled up, and people came running with buckets and cups"),
    ("{e} had been ill since the winter", "Please make {e} strong and well again", "That very hour {e} sat up, asked for soup, and began to sing"),
    ("the old bridge had fallen, and families could not visit each other", "Please give us a bridge that never falls", "A white bridge grew over the river, arch after arch"),
    ("the fishing boats had come home empty for a month", "Please bring the fish back to our bay", "By evening the nets were so full that they shone like silver"),
    ("{f} had lost {fhis} home in a fire", "Please give {f} a warm new home", "A little house with a red roof stood in the morning light"),
    ("the long frost had killed the corn", "Please let the fields grow again", "Green shoots pushed through the soil as far as one could see"),
]
BABIES = [
    dict(b="duckling", at="among the reeds", cry="Peep, peep", food="some soft crumbs", mother="a brown duck with six other ducklings", where="on the other side of the pond"),
    dict(b="fawn", at="in the tall fern", cry="Meh", food="a handful of sweet clover", mother="a tall deer with gentle eyes", where="at the edge of the clearing"),
    dict(b="owlet", at="at the foot of a tree", cry="Hoo", food="a little water from a leaf", mother="a great white owl", where="in the hollow of the tallest beech"),
    dict(b="fox cub", at="behind a fallen log", cry="Yip", food="a piece of cheese", mother="a slim red fox", where="near the den under the rocks"),
    dict(b="seal pup", at="between two rocks", cry="Arf", food="a small silver fish", mother="a sleek grey seal", where="far out beyond the waves"),
    dict(b="kid goat", at="on a narrow ledge", cry="Maa", food="a bunch of fresh grass", mother="a white goat with curved horns", where="high up on the mountain path"),
    dict(b="baby bat", at="on the cold doorstep", cry="Eek", food="a drop of milk", mother="a small brown bat", where="under the roof of the old church"),
]
NOISES = [
    dict(sound="Boom, boom", where="the attic", guess="a giant with iron boots", truth="a young stork whose foot was caught in an empty bucket", fix="pulled the bucket off with a loud pop"),
    dict(sound="Hoo, hoo", where="the empty tower", guess="a ghost", truth="an old owl who had lost his glasses", fix="found the glasses behind a beam and cleaned them"),
    dict(sound="Splash, gurgle", where="the well", guess="a water monster", truth="a fat frog who could not climb out", fix="let down the bucket, and the frog hopped in"),
    dict(sound="Scratch, scratch", where="the cellar", guess="a hungry troll", truth="a hedgehog who was looking for a warm place to sleep", fix="made a bed of dry leaves in the corner"),
    dict(sound="Oooh, oooh", where="the hollow tree", guess="a wolf with a sore tooth", truth="the wind, which blew through an old bottle", fix="turned the bottle around, and it sang like a flute"),
    dict(sound="Crash, rumble", where="the cave", guess="an angry dragon", truth="a small dragon with a terrible cold who sneezed at the rocks", fix="brought a pot of hot tea with honey"),
    dict(sound="Knock, knock", where="the old chest", guess="a goblin", truth="a woodpecker who had been shut in by mistake", fix="lifted the heavy lid and let it fly free"),
    dict(sound="Sob, sob", where="the fog on the moor", guess="a sad ghost", truth="a lonely giant who had nobody to talk to", fix="sat down beside him and told him a joke"),
]
SEEDS = [
    dict(seed="a tiny brown seed", grow="a sunflower as tall as the roof", foe="a crow tried to eat it", care="stood guard with a broom", fruit="the birds came in winter to eat the seeds"),
    dict(seed="an apple seed", grow="a slim young apple tree", foe="a late frost came in the night", care="wrapped the little stem in {his} own scarf", fruit="there were enough red apples for every child"),
    dict(seed="a striped bean", grow="a vine that climbed over the wall", foe="the snails came after the rain", care="carried each snail back to the ditch", fruit="there was a feast of beans and bread"),
    dict(seed="an orange seed from the fair", grow="the biggest pumpkin in the land", foe="the sun burned for three weeks without rain", care="carried water from the stream every evening", fruit="{he} made a lantern from it and soup for all"),
    dict(seed="a black seed as small as a flea", grow="a rose with deep red flowers", foe="the wind bent it to the ground", care="tied it to a straight stick", fruit="bees came from miles around"),
    dict(seed="a round grey nut", grow="a little walnut tree", foe="a hungry goat found the first leaves", care="built a fence of sticks around it", fruit="there was shade for everyone on hot days"),
]
LESSONS = [
    dict(flaw="{h} loved to boast.", deed="\"I can jump over the wide stream,\" {he} told everyone, although {he} had never tried.",
         warn="Big words make a heavy bag", fall="{He} ran, jumped, and landed in the middle with a great splash.",
         turn="{f} did not laugh. {Fhe} held out a long branch and pulled {him} to the bank.", moral="It is better to do much and say little"),
    dict(flaw="{h} liked to play tricks.", deed="\"Help! A wolf!\" {he} cried one day, and everyone came running, but there was no wolf at all.",
         warn="A trick like that can cost you a friend", fall="The next day a real wolf came out of the trees, and this time nobody believed {him}.",
         turn="Only {f} came, with a pan and a spoon, and made so much noise that the wolf ran away.", moral="Those who tell the truth are heard when they call"),
    dict(flaw="{h} was always in a hurry.", deed="One day {he} had to carry a basket of eggs to {e}, and {he} began to run.",
         warn="Walk, and you will be there sooner", fall="At the first turn {he} tripped over a stone, and the eggs rolled out and broke.",
         turn="{f} helped {him} gather the few eggs that were whole, and together they walked slowly the rest of the way.", moral="The slow road is sometimes the short one"),
    dict(flaw="{h} never wanted to work.", deed="All summer {he} lay in the sun while {f} gathered wood and nuts.",
         warn="Winter does not wait for the lazy", fall="Then the snow came, and {h} had no fire and nothing to eat.",
         turn="{f} opened the door and gave {him} a bowl of hot soup, and in spring {h} was the first to start work.", moral="A little work each day keeps the cold away"),
    dict(flaw="{h} always wanted more than {he} had.", deed="When {he} found a tree with ripe plums, {he} filled {his} bag, {his} hat and both {his} pockets.",
         warn="Take what you need and leave the rest", fall="On the way home the bag tore, and all the plums rolled down the hill into the river.",
         turn="{f} still had five plums in {fhis} small basket, and {fhe} gave {him} two of them.", moral="Enough is better than too much"),
    dict(flaw="{h} did not like to listen.", deed="\"Do not walk on the thin ice,\" said {e}, but {h} only laughed and went out on the pond.",
         warn="Ice has no ears, but you have two", fall="Crack! The ice broke, and {he} fell into the cold water up to {his} neck.",
         turn="{f} lay down flat, pushed a ladder across the ice, and pulled {him} out.", moral="Good advice is worth more than a dry coat"),
    dict(flaw="{h} thought that {he} was too small to be useful.", deed="When the others carried stones for the new wall, {he} sat apart and sighed.",
         warn="Every wall needs small stones too", fall="That evening {f} dropped the key down a narrow crack, and no one could reach it.",
         turn="{h} slipped {his} thin arm into the crack and pulled out the key, and everyone cheered.", moral="Nobody is too small to help"),
]
CLUES = [
    "Walk ten steps from the crooked tree", "Look where the water sings", "Follow the shadow of the tower at noon", "Ask the stone that has a face",
    "Go where the two paths kiss", "Dig under the third white stone", "Turn left at the sleeping rock", "Cross the stream where the willow bends",
]
CHESTS = [
    ("a box full of old letters and a photograph of {e} as a child", "{e} cried with joy, for {ehe} had buried it there long ago"),
    ("a bag of rare seeds and a note that said, \"Plant me\"", "that spring the whole village was full of flowers"),
    ("a small telescope wrapped in cloth", "every clear night they sat on the hill and looked at the moon"),
    ("a chest of coins, green with age", "they used them to mend the roof of the school"),
    ("a jar with a slip of paper that said, \"The real treasure is the friend beside you\"", "they looked at each other and laughed until they fell over"),
    ("a set of shining bells", "they hung one on every door, and the whole street rang in the wind"),
]
TRAPS = [
    ("stuck in the deep mud", "pushed a flat board under {fhis} feet"), ("caught in a thorn bush", "cut the thorns away one by one"),
    ("trapped behind a heavy stone", "used a strong stick to roll the stone aside"), ("sitting on a rock in the middle of the rushing stream", "laid a fallen branch across the water"),
    ("at the bottom of a deep pit", "let down a rope made of twisted vines"), ("tangled in an old fishing net", "bit and pulled at the knots until they opened"),
]
PRESENTS = [
    "a warm scarf in seven colours", "a wooden flute", "a cake with sugar stars", "a little bird carved from pine wood", "a lantern of coloured paper",
    "a crown of daisies", "a book with pictures of faraway lands", "a pair of soft slippers", "a necklace of blue beads",
    "a kite with a long tail", "a box with a secret drawer", "a hat with a green feather",
]
GAMES = [
    "built a castle of sand", "played hide and seek among the trees", "raced paper boats on the stream", "rolled down the grassy hill", "made a swing from an old rope",
    "looked for shapes in the clouds", "built a tower of smooth stones", "sang silly songs", "caught falling leaves", "drew pictures in the dust",
]
SHELTERS = ["an old barn", "a dry cave", "the hollow of a giant tree", "an empty hut", "a space under an upside-down boat", "the porch of a lonely cottage"]
