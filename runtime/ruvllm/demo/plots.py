"""Plot skeletons of the tales.

A plot receives a `Teller` (see `corpus.py`), sets the facts it needs and tells its beats in order. What
happens follows from what was wanted: each plot goes want -> obstacle -> attempt -> outcome -> feeling.
"""

import lexicon as lx


def lost(t):
    t.set(obj=t.expand(t.pick(lx.TREASURES).replace("{c}", t.pick(lx.COLOURS))))
    t.place("p"), t.place("q")
    spot, how, say = t.pick(lx.HIDDEN)
    t.set(spot=spot, how=how, say=say)
    t("[{h} had a {obj} that {he} loved more than anything.|Of all {his} things, {h} loved {his} {obj} best.|{His} greatest treasure was a {obj}, a gift from {e}.|Everywhere {h} went, {he} took {his} {obj} along.]")
    t("[One morning the {obj} was gone.|But one day, when {he} reached for the {obj}, it was not there.|Then, on a windy afternoon, {he} noticed that the {obj} was missing.] [{He} looked under the bed and behind the door, but found only dust.|{He} searched every corner of the house and sat down sadly.|\"Oh no! Where can it be?\" {he} cried.]")
    t("[{He} ran {to p} and looked everywhere, but it was not there.|First {he} went {to p}. Nothing.|\"Perhaps I left it {at p},\" {he} thought, but {at p} there was nothing but grass and stones.]")
    t("[{at p}|On the way back|Near the path], {he} met {friend}. \"[Why are you so sad|What is the matter|Why do you look so worried]?\" asked {f}. \"[I have lost my {obj}|My {obj} is gone|I cannot find my {obj}],\" said {h}. \"[Then let us look together|Two pairs of eyes see more than one|Do not cry, I will help you],\" said {f}.")
    t("[Together they went {to q}.|So the two friends walked {to q}, looking left and right.] [They asked everyone they met.|They looked under every leaf.|They were about to give up when {f} stopped.] \"[Look there|What is that|I see something]!\" {f} [cried|shouted|called]. [There it was|And there lay the {obj}|It was the {obj}], in {spot}! {how}.")
    if say:
        t("\"{say},\" said [a small voice|somebody softly]." if say != "Woof" else "\"Woof,\" said the puppy, and wagged its tail.")
    t("[{h} laughed and hugged {f}.|{h} held the {obj} tight and danced around {f}.|{h} was so happy that {he} could not speak.] \"[Thank you|I would never have found it without you|You are a true friend],\" {he} said.")
    t("[From then on, {h} kept the {obj} in a safe place.|That night the {obj} lay beside {his} pillow, and {h} slept well.|And whenever {f} lost something, {h} was the first to help.|{h} learned that a lost thing is easier to find with a friend.]")


def rescue(t):
    trap, way = t.pick(lx.TRAPS)
    t.set(trap=trap, way=way)
    t.place("p")
    t("[One day {h} was walking {to p} when {he} heard a cry.|{h} was on {his} way {to p}, and {he} was humming a tune. Suddenly a voice called out.|While {h} was playing {at p}, a weak voice came through the air.] \"[Help! Please help me|Is anybody there|Oh, help]!\"")
    t("{He} [followed the sound|ran toward the voice|looked around] and found {friend}, {trap}. \"[I have been here since morning|I was trying to take a shorter way|I did not look where I was going],\" said {f}. \"[I am so tired|Please do not leave me|I cannot move].\"")
    t("[{h} pulled with all {his} strength, but it was no use.|{h} tried to reach {f}, but {his} arms were too short.|First {h} tried it alone, but {he} was not strong enough.] [\"I must think,\" {he} said.|{He} sat down and thought hard.|\"Wait, I have an idea,\" {he} said.]")
    t("[Then {he} {way}.|{He} looked around, took what {he} needed, and {way}.|Very carefully, {he} {way}.] [It took a long time|The work was slow|The sun was already low], but [at last|finally|in the end] {f} was free.")
    t("[\"You saved me,\" said {f}, and {fhis} eyes were wet.|\"How can I ever thank you?\" asked {f}.|{f} hugged {h} and would not let go.] \"[You would do the same for me|It was nothing|That is what friends are for],\" {h} [answered|replied|said with a smile].")
    t("[Not long after, {h} fell ill, and {f} brought {him} soup every day.|A week later {h} lost {his} way in the fog, and it was {f} who found {him}.|In the autumn a storm broke {h}'s roof, and {f} came at once with a hammer and nails.|When winter came and {h} had little to eat, {f} shared everything {fhe} had.] [Kindness had come back to {him}.|So one good deed had grown into two.|And the two of them were friends for life.|{h} smiled, for a good deed is never lost.]")


def brave(t):
    x = t.pick(lx.FEARS)
    t.set(**x)
    t("[{His} best friend was {f_who}.|{h} was never far from {his} friend {f_who}.|{h} and {f_who} were always together.]")
    t("[{h} was afraid of {fear}.|There was only one thing that {h} feared, and that was {fear}.|Everyone knew that {h} was afraid of {fear}.] {why}. [The others laughed at {him}, and that hurt.|\"I wish I were brave,\" {he} often whispered.|{e} said, \"One day you will be braver than you think.\"]")
    t("[One evening|One day|Late in the autumn|On a grey afternoon], {e} came running. \"[Something terrible has happened|Quick, we need help|Has anyone seen {f}]!\" [{trouble}.|It was true: {trouble}.]")
    t("[Everyone else was far away.|There was no time to call for help.|{h} looked around, but there was nobody else.] {h} felt {his} heart [beat fast|jump like a frog|pound in {his} chest]. \"[I am afraid, but {f} needs me|If I do not go, who will|I can do it for {f}],\" {he} [said|thought|told {him}self].")
    t("{act}. {hard}. [Step by step, {he} came closer.|{He} did not turn back.|It seemed to last for ever.]")
    t("[At last {he} reached {f} and took {fhis} hand.|Then {h} had {f} by the hand, and soon they were safe.|And then it was over, and {f} was safe.] \"[You came for me|You are the bravest one I know|I knew that you would come]!\" said {f}.")
    t("\"Were you not afraid?\" asked {e}. \"[Yes, I was|Very much|I was shaking],\" said {h}, \"but {f} was more important.\" [Then {he} smiled.|{He} thought for a while.] \"{learn},\" {he} said.")
    t("[From that day on, nobody laughed at {h}.|After that, {fear} did not seem so terrible any more.|{h} had learned that being brave means going on even when you are afraid.|That night {h} slept deeply, and {he} dreamed of new adventures.]")


def sharing(t):
    t.set(food=t.expand(t.pick(lx.FOODS)))
    t.place("p")
    t("[One day {e} gave {h} {food}.|On {his} birthday, {h} got {food} from {e}.|{h} had worked hard for {e}, and as thanks {he} was given {food}.] [It smelled wonderful.|{His} mouth began to water.|{He} had never seen anything so good.] \"[All for me|I will eat it all by myself|Nobody else shall have a bite]!\" {he} thought.")
    t("[{He} went {to p}, where no one could see {him}.|So {he} hid {at p} and sat down to eat.] [Soon {friend} came by.|Just then {friend} came along the path.|But {friend} had already seen {him}.] \"[That smells lovely. May I have a little?|I have had nothing to eat today. Is there enough for two?|May I have a bite?]\" {f} asked." if t.chance(0.5) else
      "[{He} carried it {to p} and sat down alone.|{He} hurried {to p} to be alone.] [There sat {friend}, pale and thin.|But {friend} was there already.] \"[I am so hungry|Our kitchen is empty today|I lost my lunch in the river],\" said {f} [quietly|in a low voice|and looked away].")
    t("\"[No, it is mine|There is not enough for two|Go and find your own],\" said {h}. {f} [walked away without a word|looked down and went away|nodded sadly and left].")
    t("{h} took a bite, [but it did not taste as good as {he} had hoped|but somehow it tasted of nothing|and another, but something was wrong]. [It was very quiet.|The place felt empty.|{He} thought of {f}'s sad face.] [{He} remembered how {f} had once given {him} {fhis} only coat in the rain.|{He} remembered the day when {f} had waited with {him} all night.|\"{f} has always been good to me,\" {he} thought.]")
    t("{h} jumped up and ran after {f}. \"[Wait! I was wrong|Please come back|I am sorry],\" {he} called. \"[Let us eat together|Half of it is yours|It is too good to eat alone].\" [{f}'s face lit up.|{f} began to smile.|{f} could hardly believe it.]")
    t("[They sat side by side and ate every crumb.|They shared it down to the last crumb and told each other stories.|They ate, they laughed, and they gave the last crumbs to the birds.] [Now it tasted better than anything in the world.|\"How strange,\" said {h}. \"Half of it tastes better than all of it.\"|It was the best meal that {h} had ever had.]")
    t("[And from then on, {h} always shared what {he} had.|{e} saw them from the window and smiled.|That day {h} learned that joy grows when it is shared.|On the way home, {h} felt warm inside, although the evening was cold.]")


def mending(t):
    x = t.pick(lx.BROKEN)
    t.set(**x)
    t("[One morning, {thing} was broken.|One day, something sad happened to {thing}.|Everyone was upset about {thing}.] [{cause}.|Nobody had noticed, but {cause}.|It was like this: {cause}.]" if t.chance(0.5) else
      "[In those days|That spring|That week], {thing} no longer worked, for {cause}. [People shook their heads.|\"It is too old,\" the people said.|\"Throw it away,\" said some.]")
    t("{e} was very sad. \"[I have loved it all my life|My father made it with his own hands|It can never be the same again],\" {ehe} said [with a sigh|softly|and wiped away a tear].")
    t("\"[I will mend it|Let me try|I think I can help],\" said {h}. [{friend} laughed. \"You? You have never mended anything!\"|\"Do you know how?\" asked {friend}. \"Not yet,\" said {h}.|Everyone was surprised, because {h} had never held a hammer.]")
    t("[First {h} looked at it for a long time, from all sides.|{h} walked around it and touched every part.|{h} asked {e} many questions and listened well.] Then {he} [went to work|rolled up {his} sleeves|fetched {his} tools]. {He} {mend}. {extra}.")
    t.opt(0.75, "[The first try failed.|At noon everything fell apart again.|Twice it went wrong.] {h} [wanted to give up|almost cried|took a deep breath], but {f} said, \"[Try once more|I will hold it for you|You are nearly there].\" [So they worked together.|And {h} tried again.]")
    t("[At last it was done.|When the sun went down, the work was finished.|In the evening {he} put down {his} tools.] {works}. [Everybody clapped.|{e} opened {ehis} eyes wide.|For a moment nobody spoke.]")
    t("\"[It is even better than before|You have golden hands|I cannot believe it],\" said {e} and [hugged {him}|shook {his} hand|gave {him} a big smile]. [{h} blushed with pride.|{h} was tired, dirty and very happy.] [After that, people brought {him} everything that was broken.|And {h} knew now that many things can be mended with patience.|\"Most things can be mended,\" said {h}, \"if you do not give up on them.\"]")


def storm(t):
    t.place("p")
    t.set(shelter=t.pick(lx.SHELTERS), game=t.expand(t.pick(lx.GAMES)))
    t("[One day {h} and {friend} went {to p}.|It was a fine day, so {h} and {friend} went {to p} to play.|{h} and {friend} had planned a picnic {at p}.] They {game} [and forgot the time|all afternoon|and laughed a lot].")
    t("[Suddenly the sky grew dark.|Then a cold wind began to blow.|Nobody noticed the black clouds that came over the hills.] [\"Look at those clouds,\" said {f}. \"We must go home!\"|The birds stopped singing, and far away the thunder rolled.|A fat drop fell on {h}'s nose, and then another.]")
    t("[They ran, but the rain was faster.|The rain came down like a wall.|The wind pulled at their clothes and pushed them back.] [The path turned into a stream.|Branches broke and flew past them.|Lightning cut the sky in two.] \"[I cannot see the way|I am scared|We will never get home]!\" [cried|shouted] {f}. \"[Take my hand|Stay close to me|Hold on],\" said {h}.")
    t("[Then {h} saw {shelter}.|At last they found {shelter}.|\"There!\" called {h}. It was {shelter}.] [They crept inside, wet and shivering.|It was dry inside, and they sat close together.] [To keep up their spirits, {h} began to sing.|\"Let us tell stories until it is over,\" said {h}.|{h} still had a piece of bread, and {he} broke it in two.|{f} was shaking, so {h} gave {fhim} {his} jacket.]")
    t.opt(0.75, "[Something moved in the corner.|Then they heard a small sound behind them.] It was [a frightened lamb|a wet little cat|a young bird with wet feathers|a shaking hare]. [\"You poor thing,\" said {h}, and they made room for it.|\"Come here, there is room for three,\" said {f}.]")
    t("[After an hour the thunder moved away.|Slowly the rain grew softer.|At last it was quiet.] [When they stepped outside, a rainbow stood over the valley.|The sun came out, and every leaf shone like glass.|The whole world smelled fresh and new.] \"[How beautiful|It was almost worth it|The storm has washed the sky],\" said {f}.")
    t("[At home {e} was waiting with warm towels and hot milk.|On the way home they met {e}, who had been looking for them everywhere.|{e} stood at the door and held out both arms.] [\"Were you afraid?\" asked {e}. \"Only a little,\" said {h}, \"because we were together.\"|\"Next time, look at the sky,\" said {e}, and they promised that they would.|That night, they fell asleep before they could finish their story.]")


def surprise(t):
    t.set(gift=t.expand(t.pick(lx.PRESENTS)))
    t.place("p")
    if t.chance(0.5):
        t("[{h} had a good friend, {f_who}. Soon it would be {f}'s birthday.|{His} best friend was {f_who}, whose birthday was only three days away.] {h} wanted to give {f} something special, [but {he} had no money|but {he} did not know what|something that came from the heart]. \"[What makes {f} happy|What does {f} like best|What can I make with my own hands]?\" {h} asked {e}. \"[Look and listen, and you will know|The best gifts cannot be bought|A gift is a thought that you can hold],\" said {e}.")
        t("So {h} [listened well|thought about it all night|watched {f} for a whole day], and then {he} had an idea. {He} would make {gift} with {his} own hands. [Every evening {he} worked in secret {at p}.|{He} worked {at p}, where nobody could see {him}.] When {f} asked, \"[What are you doing|Where do you go every day|Do you want to play]?\" {h} only said, \"[Nothing|I have no time today|It is a secret].\"")
        t("{f} [grew sad|felt hurt|went home alone]. \"[{h} does not like me any more|{h} has forgotten me|I have lost my friend],\" {fhe} thought.")
        t("[On the morning of the birthday|When the day came|On the great day], {f} [sat alone at the window|got up late and did not smile|opened the door and looked out]. [There stood {h} with a wide smile.|\"Surprise!\" cried {h}.|The whole street was there, and {h} stood in front.] [\"This is for you,\" said {h}, and gave {fhim} {gift}.|And {h} brought {gift}.]")
        t("{f} [laughed and cried at the same time|did not know what to say|jumped for joy]. \"[So that was your secret|And I thought you had forgotten me|It is the most beautiful thing I have ever seen]!\" {fhe} said. \"[How could I forget you|I could not tell you|I made it for you],\" said {h}. [They danced until the stars came out.|They ate cake and played until evening.|It was the best birthday of all.]")
    else:
        t("[It was {his} birthday|{His} birthday had come], but [nobody seemed to know|nobody said a word about it]. [{e} was busy and only nodded.|\"Good morning,\" said {e}, and nothing more.] {h} went to see {friend}. \"[I have no time today|I must go|Not now],\" said {f}, and [closed the door|hurried away|hid something behind {fhis} back].")
        t("{h} walked {to p} [with a heavy heart|all alone|and kicked a stone along the way]. \"[Everyone has forgotten me|Nobody cares|It is just a day like any other],\" {he} thought, and [a tear ran down {his} cheek|sat there for a long time|watched the clouds go by].")
        t("[When the sun was low|Toward evening|When {he} grew cold], {he} went home. [The windows were dark.|The house was strangely quiet.] {He} opened the door slowly. \"Surprise!\" [cried a dozen voices|everybody shouted]. [Candles were burning everywhere.|There were lanterns in every corner.] [In the middle stood {f} with {gift}.|{f} held out {gift}.]")
        t("\"[We worked on it for a week|Now you know why I had no time|It was so hard to keep the secret],\" said {f}. {h} [laughed until {his} sides hurt|hugged everyone, one after the other|could not stop smiling]. \"[And I thought you had forgotten me|This is the best day of my life|You are the best friends in the world],\" {he} said. [They sang and danced until midnight.|Even {e} danced on the table.|Then {h} cut the cake, and the first piece went to {f}.]")


def journey(t):
    cure, where = t.pick(lx.CURES)
    x = t.pick(lx.ROAD_MEETINGS)
    t.set(cure=cure, where=where, **x)
    t("[One winter {e} fell very ill.|One day {e} did not get up any more.|Then {e} became ill, and nothing helped.] \"[Only one thing can help|There is one cure|I have read of a cure],\" said [the doctor|the old nurse|the wise woman]. \"It is {cure}, which {where}.\" [It was a long and dangerous way.|Nobody in the village had ever gone so far.|Everyone was silent.] \"I will go,\" said {h}.")
    t("{He} packed [bread, a rope and a warm coat|a little bread and a blanket|a bag with bread and cheese] and [set out before sunrise|said goodbye|walked until the village was only a dot behind {him}]. [{He} crossed fields and woods.|For two days {he} walked through rain and wind.|The road went up and down, and {his} feet grew sore.]")
    t("On the [second|third|fourth] day {he} met {who}. {need}. [{h} was in a hurry, but {he} stopped.|\"I have so little time,\" thought {h}, but {he} could not walk on.|\"I will help you,\" said {h} at once.] {He} {gift}. \"[I will not forget this|Kindness is never lost|Thank you, little one],\" [was the answer|came the reply].")
    t("[Soon the way grew harder.|Higher and higher went the path.|Then {he} came to a place where the road ended.] [{h} was cold and tired, and {he} did not know where to go.|\"I shall never get there,\" {he} sighed.|{He} sat down and nearly wept.] But {he} was not alone: {back}.")
    t("[And there, in the pale light, {he} found what {he} had been looking for.|In the morning {he} stood before it: {cure}.|At last {he} held it in {his} hands.] [{He} wrapped it carefully and ran home.|{He} did not rest until {he} was home again.|The way back seemed much shorter.]")
    t("[{e} opened {ehis} eyes and smiled.|After one night the fever was gone.|Soon {e} had red cheeks again.] \"[You went so far for me|How did you find the way|Were you all alone]?\" {ehe} asked. \"[I had help|I met a friend on the road|A friend showed me the way],\" said {h}. [And {he} told the whole story by the fire.|{e} held {his} hand for a long time.|And the whole village came to listen.]")


def contest(t):
    x = t.pick(lx.CONTESTS)
    t.set(**x)
    t("[Every year there was {event}, and the prize was {prize}.|Soon it was time for {event}. The winner would get {prize}.|Everybody was talking about {event}.] [This year {h} wanted to win.|\"This time I will win,\" said {h}.|{h} had dreamed of it since {he} was very small.] {He} {prep}. [{friend} practised too, and {fhe} was very good.|But {friend} wanted to win as well.]")
    t("[On the day of the contest, the whole village came to watch.|The day came, and the air was full of flags and music.|At last the great day was there.] [{h} was so excited that {he} could not eat.|{His} hands were shaking.|\"Good luck,\" said {e}.] [A trumpet blew, and it began.|\"Ready, steady, go!\" called the judge.]")
    t("[At first {h} was ahead.|Everything went well for {h}.|It was very close.] [Then something happened.|But suddenly there was a cry.] {f} {mishap}. [{h} could have won now.|\"Now I will win,\" thought {h}, but {he} saw the tears in {f}'s eyes.|Nobody moved.] [But {he} did not think twice.|{h} looked at the prize, and then at {f}.] {He} {help}.")
    t("\"[Why did you do that|You could have won|But now you will lose],\" said {f}. \"[I would rather have a friend than a prize|It would be no fun without you|Winning alone is lonely],\" said {h}. {end}.")
    t("[The prize went to someone else, but the crowd cheered for the two friends.|The judge thought for a long time, and then gave the prize to both of them.|\"I have never seen anything like it,\" said the judge, and gave {prize} to {h} for the kindest heart.]")
    t("[{h} did not mind at all.|That evening they sat under the stars and laughed about it.|On the way home they were already making plans for the next year.] [{e} was very proud.|And that is how {h} won something better than {prize}.|They had both won.]")


def garden(t):
    x = t.pick(lx.SEEDS)
    t.set(**x)
    t("[One spring day {h} found {seed} {in pocket}.|{e} gave {h} {seed}.|At the fair, {h} traded a button for {seed}.] \"[What will it be|What is sleeping inside|Is it alive]?\" {he} asked. \"[Plant it and you will see|Wait and see|Give it earth, water and time],\" said {e}.")
    t("{h} [dug a small hole|made a hole with {his} finger|found a sunny spot by the wall], put the seed in, and [covered it with earth|gave it some water|patted the earth flat]. [The next morning {he} ran to look, but there was nothing.|Every day {he} looked, and every day there was only brown earth.|One day passed, and another, and nothing happened.] \"[It does not work|It is dead|I have done it wrong],\" said {h} [sadly|and stamped {his} foot]. \"[It needs time|You cannot hurry a seed|Wait a little longer],\" said {e}.")
    t("[So {h} waited, and watered it each day.|{h} sang to it every evening.|It was hard to wait, but {h} tried.] [Then, one morning, a green tip looked out of the earth.|And after two weeks, there were two tiny leaves.] \"[It is alive|Look, it is growing|Hello, little one]!\" {he} cried.")
    t("[But then {foe}.|It was not easy, for {foe}.] [{h} did not give up.|\"You shall not have it!\" said {h}.|{h} had to do something.] {He} {care}. [{f} helped {him}, and they took turns.|{friend} came to help.|It was hard work.]")
    t("[The summer went by.|The days grew long and warm.|Weeks went by.] The plant [grew and grew|became taller every day|stretched toward the sun]. [In the end it was|It became] {grow}, and {fruit}.")
    t("[{h} stood before it and could hardly believe it.|\"And all that was inside such a small thing,\" said {h}.|People came to look, and {h} told them the story.] [\"Good things need time,\" said {e}.|In the autumn {he} put new seeds into a little box, and gave one to {f}.|{h} kept one seed for the next spring.|{h} had learned how to wait.]")


def newcomer(t):
    t.place("p")
    t.set(game=t.expand(t.pick(lx.GAMES)))
    t("[One day a new family moved in next door.|A stranger had come to live nearby.|That summer somebody new arrived.] It was {f_intro}, who [spoke to no one|always stood apart|hid whenever someone came]. [\"{fHe} is strange,\" said the others. \"Leave {fhim} alone.\"|The others whispered and did not ask {fhim} to play.|Nobody knew what to say to {fhim}.]")
    t("[{h} felt sorry for {fhim}.|{h} remembered how it was to be alone.|But {h} saw that {fhis} eyes were sad.] [So one day {he} went over and said, \"Hello, I am {h}.\"|{He} took a deep breath and knocked at the door.|{He} left a flower at the door with a note.] [But {f} only looked at the ground.|{f} ran away without a word.|There was no answer.]")
    t("[{h} did not give up.|\"Perhaps tomorrow,\" thought {h}.|{e} said, \"Shy hearts open slowly.\"] The next day {he} [sat down at a little distance and began to draw|brought two pears and put one on the wall|walked {to p}, where {f} was sitting, and sat down quietly]. [For a long time nothing happened.|They did not speak.] Then {f} [came closer|looked up|took a step] and said, \"[That is nice|My name is {f}|Thank you].\"")
    t("[\"Why do you never play with us?\" asked {h}.|\"Do you miss your old home?\" asked {h}.] \"[I was afraid that you would laugh at me|I talk in a different way|I had to leave all my friends behind],\" said {f}. \"[I would never laugh at you|I would like to be your friend|You have one friend now],\" said {h}.")
    t("[After that, they met every day.|They went {to p} together.] They {game}, and [{f} laughed for the first time|{f} turned out to be very funny|{f} knew games that nobody had ever seen]. [One by one, the others came to join them.|Soon everyone wanted to play with {f}.|\"May we play too?\" asked the others.]")
    t("[In the evening {f} said, \"I think I am at home now.\"|\"You were the first to say hello,\" said {f}. \"I will never forget it.\"|From then on, nobody was left alone {at p}.] [{h} smiled all the way home.|And all it had taken was one small hello.|{e} nodded. \"A stranger is only a friend you do not know yet.\"]")


def foundling(t):
    x = t.pick(lx.BABIES)
    t.set(**x)
    t("[One morning {h} was out walking when {he} heard a thin cry.|{h} was looking for mushrooms when something moved.|After a stormy night, {h} went out to see what the wind had done.] \"{cry}!\" [There, {at}, sat a tiny {b}.|It was a tiny {b}, {at}, all alone.]")
    t("[It was shivering and looked at {him} with big eyes.|It was cold and hungry, and it could hardly stand.|It was so small that it could have slept in a hat.] \"[Where is your mother|Are you lost|Are you all alone]?\" asked {h}. \"{cry},\" said the {b}.")
    t("{h} [wrapped it in {his} scarf|warmed it in {his} arms|held it close] and gave it {food}. [The {b} ate, yawned and fell asleep.|Soon it stopped shaking.] \"[I want to keep it|You can stay with me for ever|Now you are mine],\" {h} [said|whispered]. But {e} shook {ehis} head. \"[Its mother is looking for it|It needs its own family|It is not a toy],\" {ehe} said.")
    t("{h} knew that {e} was right. [{He} swallowed {his} tears.|It made {him} sad, but {he} nodded.] [Together with {friend}, {he} set out.|So {he} called {friend}, and the two went to look.] [They looked for tracks.|They followed small footprints.|They walked for hours and listened.] {h} carried the {b} [carefully|under {his} coat], and {f} [called and called|went ahead|watched the sky and the ground].")
    t("[At last|Toward evening|When they were almost too tired to go on], they heard an answer. {where} [stood|waited] {mother}. \"{cry}!\" cried the {b}, and [tried to jump out of {his} arms|wriggled with joy]. {h} [set it down gently|knelt and let it go]. [Mother and child pressed close to each other.|The mother touched it again and again, as if to count it.]")
    t("[{h} wiped {his} eyes. \"Goodbye, little one,\" {he} said.|\"I will miss you,\" said {h}.] [Before it went, the {b} turned around once more.|The mother bowed her head, as if to say thank you.] [In the spring, {he} saw it again, and it had grown tall and strong.|\"You did the right thing,\" said {f}, and took {his} hand.|{h} was sad and happy at the same time, but more happy than sad.]")


def wish(t):
    thing, deed, then = t.pick(lx.MAGIC)
    need, ask, result = t.pick(lx.NEEDS)
    t.set(thing=thing, deed=deed, then=then, need=need, ask=ask, result=result)
    t.place("p")
    t("[One day, {at p}, {h} found {thing}.|{h} was digging {at p} when {he} found {thing}.|Something was shining {at p}. It was {thing}.] [{He} {deed}, and {then}.|When {he} {deed}, {then}.] \"[Do not be afraid|You have set me free|I have slept for a hundred years],\" said [the voice|it kindly|a gentle voice]. \"[I will give you one wish, but only one|You may make one wish|One wish is yours, so choose it well].\"")
    t("{h}'s head [began to spin|was full of ideas]. [A mountain of sweets? A castle? A horse with wings?|{He} thought of a chest of gold, and of a ship with silver sails.|{He} could be a king, or fly like a bird.] \"[May I think about it|Please give me until the evening|I need some time],\" {he} asked.")
    t("On {his} way home {he} met {friend}. \"[I would wish for a thousand cakes|Take the gold|Wish for a bigger house],\" said {f}. [That sounded good.|They both laughed.] [But then {h} looked around.|But {h} had seen something sad that day.] In those days {need}. [{h} grew quiet.|{h} could not forget it.]")
    t("[In the evening|When the first star came out|At sunset], {he} went back. \"[Have you chosen|What is your wish|Well]?\" asked the voice. \"[Yes, I have|I know what I want],\" said {h}. \"{ask}.\" \"[And nothing for yourself|Are you sure|Is that all]?\" \"[Nothing|Yes, that is all|I have all I need],\" {he} said.")
    t("[There was a flash of light.|A warm wind blew.|The air sang like a glass.] {result}. [Everybody laughed and cried.|Nobody knew how it had happened.|\"It is a wonder!\" the people said.]")
    t("[{h} told nobody but {f}.|Only {f} knew the secret.] \"[That was a better wish than mine|You gave your wish away|You have a good heart],\" said {f}. [\"I was the happiest of all,\" said {h}, \"so it was for me too.\"|And {h} had never been so happy.|{h} looked at all the happy faces and knew that {he} had chosen well.]")


def noise(t):
    x = t.pick(lx.NOISES)
    t.set(**x)
    t("[One night {h} was woken by a strange noise.|For three nights, a strange noise had kept everyone awake.|When the moon was full, a strange sound came through the dark.] \"{sound},\" it went. It came from {where}. [\"It is {guess},\" whispered {friend}.|\"I am sure that it is {guess},\" said {friend}.|Everyone believed that it was {guess}.] [Nobody dared to go there.|All the doors were locked.|Even {e} pulled the blanket over {ehis} ears.]")
    t("\"[Somebody has to look|I want to know what it is|It does not sound angry, it sounds sad],\" said {h}. [\"Do not go!\" said {f}. \"It will eat you!\"|\"Then I will come with you,\" said {f}, although {fhe} was shaking.] {h} took [a candle|a lantern|{his} little lamp] and [went on tiptoe|crept through the dark|walked slowly forward]. \"{sound}!\" it went, [louder now|much closer|right in front of {him}]. [{His} knees were weak.|{His} heart was beating fast.|The light trembled in {his} hand.]")
    t("[{He} counted to three and looked.|{He} held up the light and opened {his} eyes.|Then {he} took one more step.] [There was no monster at all.|And what did {he} see?|{He} almost laughed.] It was {truth}. \"[So it was you|You gave us such a fright|So that is all it was],\" said {h} [kindly|with a laugh|softly].")
    t("{He} {fix}. [The noise stopped at once.|Now everything was well.|Soon all was quiet.] [\"And we were all so afraid!\" said {f}, who had come after {him}.|{f} came out from behind a wall and turned red.|{f} began to laugh and could not stop.]")
    t("[In the morning {h} told the others, and they were ashamed.|The next day everybody came to see for themselves.|\"Things look different when you bring a light,\" said {e}.] [From then on they had a new friend.|From that night on, they all slept well.|And nobody in that place was ever afraid of a noise again.] [\"You only have to look,\" said {h}.|{h} had learned that most monsters vanish when you look at them.|And that is the end of the story of the {where_short}.]")


def lesson(t):
    x = t.pick(lx.LESSONS)
    t.set(**x)
    t("{flaw} [{e} often shook {ehis} head about it.|Everyone knew it, and most of them only sighed.|\"One day you will be sorry,\" said {e}.|It had often brought {him} into trouble.]")
    t("[{His} best friend was {f_who}.|{His} friend {f_who} was quite different.|{f_who} was {his} only friend.]")
    t("{deed} [\"{warn},\" warned {e}, but {h} did not listen.|\"{warn},\" said {e}. {h} only shrugged.|{f} looked worried. \"{warn},\" {fhe} said, but {h} turned away.]")
    t("{fall} [{h} was ashamed.|\"Oh, what have I done?\" {he} said.|Now {he} did not feel so clever.|For a moment {h} could not speak.]")
    t("{turn} [\"Why do you help me?\" asked {h}. \"Because you are my friend,\" said {f}.|\"I am sorry,\" said {h} in a small voice.|\"Thank you,\" said {h}. \"I did not deserve it.\"]")
    t("[That evening {he} sat with {e} by the fire.|Later {he} told {e} everything.|{e} had seen it all.] \"[What have you learned|And what will you do tomorrow|So, what do you think now]?\" {ehe} asked. {h} [thought for a long time|looked into the flames|did not answer at once]. \"{moral},\" {he} said [at last|slowly|in the end].")
    t("[The next day {he} began to change.|It was not easy, but {h} tried hard.|And {he} kept to it.] [Sometimes {he} forgot, but then {f} gave {him} a wink.|After a while even {e} noticed it.|{f} was the first to see it, and {fhe} was glad.] [And so they both lived happily.|{h} was happier than ever before.|And when {he} was old, {he} told this story to the little ones.]")


def treasure(t):
    clues = t.rng.sample(lx.CLUES, 2)
    chest, after = t.pick(lx.CHESTS)
    t.set(c1=clues[0], c2=clues[1], chest=chest, after=after)
    t.place("p")
    t("[In the attic {h} found an old map.|One rainy day, a yellow piece of paper fell out of a book. It was a map.|Inside a bottle {at p}, {h} found a map.] [A red cross was drawn on it.|There were strange signs on it, and a red cross.] {He} [ran to|showed it to|called] {friend}. \"[A treasure|It must be a pirate's treasure|Let us find it]!\" {f} [cried|shouted|whispered].")
    t("[They took a spade and a bag and set out.|They packed some apples and a rope.|Early in the morning they set out.] The first clue said, \"{c1}.\" [They walked around twice before they understood.|\"I know where that is!\" said {h}.|{f} scratched {fhis} head, but {h} was already running.] [There they found the second clue under a stone.|There, cut into the wood, was the second clue.] \"{c2},\" it said.")
    t("[It was harder than they had thought.|That one was difficult.|They searched until noon.] [\"I am tired, and my feet hurt,\" said {f}.|\"Maybe there is no treasure at all,\" said {f}.|They took a wrong turn and came to a swamp.] \"[Only a little more|Do not give up now|We are close, I can feel it],\" said {h}. [They shared the last apple and went on.|They sat down for a moment, and then they went on.]")
    t("[Then they saw the place.|And suddenly they stood before it.|At last, {at p}, they found the cross.] [They dug and dug, until the spade hit something hard.|{h} dug until {his} hands hurt. Clonk! There was something.|{f} dug on one side and {h} on the other.] [With shaking hands, they opened the lid.|They brushed away the earth and looked inside.] It was {chest}.")
    t("[At first they did not know what to say.|\"Well,\" said {f}, \"I did not expect that.\"|\"Oh,\" whispered {h}.] [Then they carried it home.|They took it to {e}.] And {after}.")
    t("[\"That was the best day of all,\" said {f}.|\"Shall we look for another one tomorrow?\" asked {f}, and {h} laughed.|That night {h} drew a new map, and {he} hid it in a book for someone else to find.] [The map still hangs on {h}'s wall.|And they never forgot that day.|It was worth more than gold.]")


def skill(t):
    x = t.pick(lx.SKILLS)
    t.set(**x)
    t.place("p")
    t("[{h} wanted to learn to {skill}.|More than anything, {h} wanted to {skill}.|All the others could {skill}, but {h} could not.] [One day {he} tried it, but {fail}.|The first time {he} tried, {fail}.] [Everyone laughed.|Some of the others giggled.|{He} turned red and ran away.] \"[I will never learn it|I am no good at all|It is too hard],\" {he} said.")
    t("{e} [found {him} {at p}|sat down beside {him}|had seen everything]. \"[I was bad at it too when I was small.|Nobody is born with it.|Do you know how often I failed?]\" {ehe} said. \"{tip}.\" [{h} wiped {his} nose and listened.|{h} looked up. \"Really?\" {he} asked.]")
    t("So {he} [tried again|did not give up|began once more]. Day after day, {he} {drill}. [The first day was bad.|It still went wrong, but a little less.|{friend} watched and kept {him} company.] [The second day was better.|The next day {his} whole body hurt, but {he} came back.] [\"You are getting better,\" said {f}.|\"Again!\" {he} told {him}self.|{He} practised in the sun and in the rain.]")
    t("[A week went by, and then another.|The weeks went by.|{He} lost count of the days.] [And then, one morning, it happened.|Then came the day when everything felt easy.|One evening, all at once, {he} could do it.] {h} {win}. [\"I did it!\" {he} shouted.|{He} could hardly believe it.|{f} cheered so loudly that the birds flew up.]")
    t("[\"You see?\" said {e}.|{e} smiled and said nothing.|\"I knew it,\" said {e}.] [The others stopped laughing, and some asked {him} to teach them.|Soon a little one came to {him}. \"Can you show me?\" it asked.|{f} asked, \"Will you teach me too?\"] [\"Of course,\" said {h}. \"{tip}.\"|And {h} was a patient teacher, for {he} knew how it felt to fail.] [That is how {h} learned that practice is the best teacher.|And they practised together until the sun went down.|{h} was proud, and that evening {he} fell asleep with a smile.]")


def star(t):
    t.place("p")
    t.set(goal=t.pick(["the moon", "a star", "the rainbow", "a cloud"]))
    t("[Every night|Often|When nobody was looking], {h} looked up at the sky. [\"I want to hold {goal} in my hands,\" {he} said.|More than anything, {he} wanted to have {goal}.|{He} wished for nothing but {goal}.] [\"Nobody can reach it,\" said {friend}.|{friend} laughed. \"It is much too far away.\"|\"What would you do with it?\" asked {friend}.]")
    t("But {h} wanted to try. First {he} [climbed the tallest tree|stood on the roof and stretched out {his} arms|built a tower of boxes], but [the sky was still far away|it was not high enough|{he} could not even touch the wind]. Then {he} [made wings of leaves and jumped from a haystack, and landed in the mud|tied ten balloons to a chair, but they burst, and {he} fell down with a bump|threw a rope into the air, and it came down on {his} head]. [\"Ouch,\" {he} said.|{f} helped {him} up.]")
    t("[Sad and tired, {he} went {to p}.|{He} sat {at p} and hung {his} head.] [{e} was sitting there.|There {he} met {e}.] \"[Some things are not for having|Must you hold a thing to love it|Look closer],\" {ehe} said. [\"What do you mean?\" asked {h}.|{h} did not understand.] {e} [pointed at the still water|led {him} to a bucket full of water|set a bowl of water before {him}]. [There it was: {goal}.|And in it, clear and bright, shone {goal}.|And there, no bigger than a plate, was {goal}.]")
    t("{h} [put {his} hand into the water|bent down and looked], and {goal} [broke into a thousand pieces|trembled and smiled]. [\"It is everywhere,\" {he} said with wonder.|\"It came down to me,\" {he} whispered.] \"[It belongs to everyone who looks|It shines for you and for everyone|And nobody has to climb],\" said {e}.")
    t("[{h} ran to fetch {f}.|{h} called {f}.] [They sat side by side and looked until they were sleepy.|Together they watched it for a long time.|They lay in the grass and said nothing.] [\"It is more beautiful when you share it,\" said {h}.|\"You were right to try,\" said {f}.] [And {h} did not want to own it any more.|From then on, {h} said good night to it every evening.|That night {he} dreamed that {he} was flying.]")


PLOTS = [lost, rescue, brave, sharing, mending, storm, surprise, journey, contest, garden, newcomer, foundling, wish, noise, lesson, treasure, skill, star]


def ship(t):
    """Pirate tales: the style that the LoRA adapter learns."""
    t.place("p")
    t("[Arr, gather round, mateys!|Ahoy, me hearties!|Yo ho ho! Listen well, ye landlubbers.|Avast, and hear me tale!] [{h} was the boldest pirate on the seven seas|No pirate was feared like Captain {h}|This be the tale of Captain {h}], and {his} ship was the [Salty Parrot|Pearl of Dawn|Merry Shark|Rusty Anchor|Golden Gull]. [A parrot sat on {his} shoulder and swore all day.|{He} had a wooden leg and a heart o' gold.|{He} wore a great black hat with a feather.]")
    t("[One stormy night|At the turn o' the tide|On a black and windy morn], [the lookout|{f}, the first mate,|the old cook] [shouted|roared|cried], \"[Land ahoy|A sail, Cap'n|Treasure island off the bow]!\" \"[Hoist the sails, ye dogs|All hands on deck|Shiver me timbers]!\" roared {h}. [The ship leaped over the waves.|The black flag snapped in the wind.|The cannons were loaded, and the drums were beaten.]")
    t("[The map said, \"{c1}.\"|An old map showed the way, matey, and a red cross marked the spot.|\"There be gold on that island,\" said {f}, \"I can smell it.\"] [They rowed ashore with shovels and lanterns.|They marched through the jungle, singing a sea song.|They fought off crabs as big as barrels.] \"[Dig, me hearties, dig|Heave ho|Arr, put yer backs into it]!\" cried {h}.")
    t("[But a rival crew was waiting behind the rocks!|But then a sea monster rose from the deep!|Suddenly the ground began to shake, matey!] \"[Walk the plank, ye scurvy rats|Hand over the gold|Arr, ye shall not pass]!\" [growled a voice|someone roared]. {h} [drew {his} cutlass|laughed in the face o' danger|swung on a rope] and [chased them back into the sea|sent them to the bottom with a mighty blow|tricked them with a barrel o' fish]. \"[That be the end o' them|Nobody robs Captain {h}|Blimey, that was close],\" said {f}.")
    t("[At last the chest was open.|The spade struck wood. Clonk!|There it was, the treasure chest!] It was full o' [gold doubloons|pearls and rubies|silver cups and golden crowns|pieces o' eight]. \"[We be rich, matey|Share and share alike, says the pirate code|Half for the crew, and half for the poor folk o' the harbour],\" said {h}.")
    t("[They drank coconut milk and danced on the deck till dawn.|They sang so loud that the whales came to listen.|Then they sailed into the sunset, yo ho ho.] [And the parrot said, \"Arr!\"|And if ye listen well, ye can still hear them laugh across the waves.|And that, matey, be the end o' me tale.]")
