"""The closed world of the demo: everything the tiny base model is meant to know, as facts.
A fact is one plain sentence and the questions that it answers. Nothing here is random."""

ANIMALS = """cow brown 4 moo farm grass
dog brown 4 bark kennel bones
cat grey 4 meow house fish
horse brown 4 neigh stable hay
sheep white 4 bleat meadow grass
pig pink 4 oink sty corn
duck yellow 2 quack pond bread
hen red 2 cluck coop seeds
owl grey 2 hoot barn mice
crow black 2 caw tree seeds
lion gold 4 roar savanna meat
tiger orange 4 growl jungle meat
bear brown 4 growl forest honey
wolf grey 4 howl forest meat
fox red 4 yelp den mice
frog green 4 croak pond flies
snake green 0 hiss grass mice
mouse grey 4 squeak hole cheese
elephant grey 4 trumpet savanna leaves
monkey brown 2 chatter jungle bananas
goat white 4 bleat mountain grass
donkey grey 4 bray stable carrots
bee yellow 6 buzz hive nectar
spider black 8 nothing web flies
parrot green 2 squawk jungle nuts
penguin black 2 honk ice fish
seal grey 0 bark beach fish
whale blue 0 sing ocean krill
rabbit white 4 nothing burrow carrots
camel brown 4 grunt desert thorns"""

CAPITALS = """France Paris, Spain Madrid, Italy Rome, Germany Berlin, Portugal Lisbon, Austria Vienna,
Poland Warsaw, Greece Athens, Norway Oslo, Sweden Stockholm, Finland Helsinki, Denmark Copenhagen,
Ireland Dublin, Iceland Reykjavik, Hungary Budapest, Romania Bucharest, Bulgaria Sofia, Turkey Ankara,
Egypt Cairo, Kenya Nairobi, Ghana Accra, Morocco Rabat, Nigeria Abuja, Japan Tokyo, China Beijing,
India Delhi, Nepal Kathmandu, Vietnam Hanoi, Thailand Bangkok, Iran Tehran, Iraq Baghdad, Cuba Havana,
Peru Lima, Chile Santiago, Canada Ottawa, Jamaica Kingston, Uruguay Montevideo, Ecuador Quito,
Colombia Bogota, Australia Canberra"""

COLOURS = """the sky blue, grass green, snow white, coal black, blood red, the sun yellow, the moon silver,
the sea blue, chocolate brown, a lemon yellow, a tomato red, a carrot orange, a banana yellow, a cherry red,
a plum purple, a strawberry red, a cucumber green, milk white, honey gold, a cloud white, the night black,
a leaf green, sand yellow, a brick red, butter yellow, a violet purple, a rose red, pepper black, salt white,
a lime green"""

OPPOSITES = """hot cold, big small, fast slow, high low, wet dry, old new, full empty, light dark, hard soft,
rich poor, early late, happy sad, strong weak, long short, open closed, clean dirty, loud quiet, deep shallow,
thick thin, wide narrow, sweet sour, brave afraid, near far, heavy light, smooth rough, cheap expensive,
asleep awake, right wrong, first last, alive dead"""

TOOLS = """hammer hit nails, saw cut wood, knife cut bread, broom sweep the floor, needle sew clothes,
spoon eat soup, key open a door, pen write a letter, brush paint a wall, shovel dig a hole, axe chop wood,
oven bake bread, lamp light a room, clock tell the time, compass find north, net catch fish, rope tie a knot,
bucket carry water, ladder reach the roof, map find the way, oar row a boat, anchor hold a ship,
telescope see the stars, umbrella keep the rain off, towel dry the hands"""

JOBS = """baker bake bread, farmer grow corn, teacher teach children, doctor heal the sick, sailor sail a ship,
pilot fly a plane, tailor sew clothes, cook make dinner, painter paint pictures, miner dig for coal,
fisher catch fish, singer sing songs, writer write books, judge apply the law, nurse care for the sick,
builder build houses, gardener plant flowers, potter make pots, barber cut hair, captain lead the crew"""

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()

SMALL_TALK = [
    ("Hello! How can I help you?", ["Hello!", "Hi!", "Hello there.", "Good morning!"]),
    ("I am a tiny model that answers small questions.", ["Who are you?", "What are you?", "Tell me about yourself."]),
    ("You are welcome.", ["Thank you!", "Thanks a lot.", "Thank you very much."]),
    ("I am fine, thank you.", ["How are you?", "How are you today?", "How do you do?"]),
    ("Goodbye! Come back soon.", ["Goodbye!", "Bye!", "See you later."]),
    ("I can tell you about animals, capitals, colours and numbers.", ["What can you do?", "What do you know?"]),
]


def entries(text):
    return [entry.strip() for entry in text.replace("\n", " ").split(",")]


def pairs(text):
    """The entries of a comma-separated table, each split at its first space."""
    return [entry.split(" ", 1) for entry in entries(text)]


def article(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def third_person(phrase):
    """"bake bread" -> "bakes bread"."""
    verb, _, rest = phrase.partition(" ")
    ending = "es" if verb.endswith(("ch", "sh")) else "s"
    verb = verb[:-1] + "ies" if verb.endswith("y") and verb[-2] not in "aeiou" else verb + ending
    return f"{verb} {rest}"


def animal_facts():
    for line in ANIMALS.splitlines():
        name, colour, legs, sound, home, food = line.split()
        a = article(name)
        yield f"{a} is {colour}.", [f"What colour is {a}?", f"Which colour does {a} have?", f"Tell me the colour of {a}."]
        yield f"{a} has {legs} legs.", [f"How many legs does {a} have?", f"How many legs has {a}?", f"Count the legs of {a}."]
        yield f"{a} lives in the {home}.", [f"Where does {a} live?", f"What is the home of {a}?", f"Where can I find {a}?"]
        yield f"{a} eats {food}.", [f"What does {a} eat?", f"What is the food of {a}?", f"What do I feed {a}?"]
        said = f"{a} makes no sound." if sound == "nothing" else f"{a} says {sound}."
        yield said, [f"What does {a} say?", f"What sound does {a} make?", f"How does {a} sound?"]


def table_facts():
    for country, city in pairs(CAPITALS):
        yield f"The capital of {country} is {city}.", [
            f"What is the capital of {country}?", f"Which city is the capital of {country}?",
            f"Name the capital of {country}.", f"Tell me the capital of {country}."]
        yield f"{city} is in {country}.", [f"Where is {city}?", f"In which country is {city}?", f"Where do I find {city}?"]
    for thing, colour in (entry.rsplit(" ", 1) for entry in entries(COLOURS)):
        yield f"The colour of {thing} is {colour}.", [
            f"What is the colour of {thing}?", f"What colour is {thing}?", f"Tell me the colour of {thing}."]
    for word, other in pairs(OPPOSITES):
        for one, two in ((word, other), (other, word)):
            yield f"The opposite of {one} is {two}.", [
                f"What is the opposite of {one}?", f"Tell me the opposite of {one}.", f"Which word is the opposite of {one}?"]
    for tool, use in pairs(TOOLS):
        a = article(tool)
        yield f"You use {a} to {use}.", [f"What is {a} for?", f"What do I do with {a}?", f"Why do I need {a}?"]
    for job, work in pairs(JOBS):
        a = article(job)
        yield f"{a} {third_person(work)}.", [f"What does {a} do?", f"What is the work of {a}?", f"What is the job of {a}?"]


def order_facts():
    for kind, names in (("day", DAYS), ("month", MONTHS)):
        for i, name in enumerate(names):
            after, before = names[(i + 1) % len(names)], names[i - 1]
            yield f"{after} comes after {name}.", [
                f"Which {kind} comes after {name}?", f"What comes after {name}?", f"What is the {kind} after {name}?"]
            yield f"{before} comes before {name}.", [
                f"Which {kind} comes before {name}?", f"What comes before {name}?", f"What is the {kind} before {name}?"]


def sum_facts():
    for a in range(11):
        for b in range(11):
            yield f"{a} plus {b} is {a + b}.", [f"What is {a} plus {b}?", f"How much is {a} plus {b}?", f"Add {a} and {b}."]


def all_facts():
    """Every (sentence, questions), sentences starting with a capital."""
    facts = [*animal_facts(), *table_facts(), *order_facts(), *sum_facts(), *SMALL_TALK]
    return [(sentence[0].upper() + sentence[1:], questions) for sentence, questions in facts]
