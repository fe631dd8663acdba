"""Short texts that an English pipeline parses, and texts that it must not, each told by what it is."""

# Texts to be parsed.
ENGLISH = {
    "sentence": [
        "The old man sat at the window and read the paper while it was raining outside.",
        "John saw Mary with a telescope.",
        "Dr. Smith lives at 221b Baker Street, London.",
        "He said: Honi soit qui mal y pense, and then he left us for good.",
        "Colorless green ideas sleep furiously while the hungry tigers dream.",
        "My iPhone and MacBook run JavaScript and TypeScript on GitHub.",
        "See https://www.example.org/a_b/c_d?x=1 or write to <ann_b@example.org> and to bob_c@example.org",
        "The word кот is Russian and means a cat.",
        "The patient was given 5 mg of a drug twice a day for three weeks.",
    ],
    "list": [
        "Bring bread, milk, eggs, butter, cheese and two bottles of wine.",
        "red, green, blue, yellow, black, white",
    ],
    "question": ["Who wrote Hamlet?", "Can dogs eat cheese?", "What is the capital of France?"],
    "title": ["The Lord of the Rings", "Police find missing girl", "BREAKING NEWS: STORM HITS THE COAST"],
    "dialogue": [
        '"Where are you?" she asked. "I am here," he said.',
        "Well, yeah, you know, it's kind of okay.",
        "Hello",
    ],
}

# Texts that are not parsed.
OTHER = {
    "Python": [
        "def add(a, b):\n    return a + b",
        "result = [word.lower() for word in words if word not in stop_words]",
        "while not done and x is not None: x = next(it)",
        "x = f(y)",
    ],
    "JavaScript": ["function greet(name) { return 'Hello ' + name; }"],
    "Java": ['public static void main(String[] args) { System.out.println("Hello"); }'],
    "C": ["int main(void) { for (int i = 0; i < n; i++) total += a[i]; return 0; }", "#include <stdio.h>"],
    "Rust": ["let mut names: Vec<String> = Vec::new();", 'fn main() { println!("hello"); }'],
    "JSON": ['{"name": "Ann", "age": 30, "tags": ["a", "b"]}'],
    "HTML": ['<a href="index.html">Back to the start</a>', "<p>Hello, <b>world</b>!</p>"],
    "LaTeX": ["\\frac{a}{b} = \\sum_{i=1}^{n} x_i"],
    "SQL": ["DELETE FROM orders WHERE price < 10", "select name from users where age > 30 order by name"],
    "shell": ["git commit -m 'Fix the test' && git push", "sudo apt-get install python3-pip"],
    "German": ["Die Katze ist weggelaufen, weil der Hund bellte.", "Guten Morgen", "Was war das?"],
    "French": ["La conférence sur l'intelligence artificielle commence lundi à Paris.", "Où est la gare ?"],
    "Spanish": ["La conferencia sobre inteligencia artificial comienza el lunes en Madrid.", "No me gusta el pan."],
    "Dutch": ["De kat die ik gisteren zag, is weggelopen omdat de hond blafte.", "Waar is het station?"],
    "Italian": ["Il gatto che ho visto ieri è scappato perché il cane abbaiava.", "Mi piace molto la pizza."],
    "Polish": ["Kot, którego widziałem wczoraj, uciekł, bo pies szczekał.", "Gdzie jest dworzec?"],
    "Portuguese": ["O gato que eu vi ontem fugiu porque o cachorro latia.", "Onde fica a casa de banho?"],
    "Swedish": ["Katten som jag såg igår sprang iväg.", "Jag har en hund och två katter."],
    "Latin": ["Gallia est omnis divisa in partes tres.", "Lorem ipsum dolor sit amet, consectetur adipiscing elit."],
    "Russian": ["Кошка, которую я видел вчера, убежала.", "Кошка убежала."],
    "Greek": ["Η γάτα έφυγε."],
    "Chinese": ["我昨天看到的猫跑了。", "猫"],
    "Japanese": ["猫がソファーで寝ている。", "東京は日本の首都です。"],
    "Korean": ["고양이가 소파에서 자고 있다."],
    "Arabic": ["القطة التي رأيتها أمس هربت.", "أين المحطة؟"],
    "Hebrew": ["החתול ברח."],
    "Hindi": ["बिल्ली सोफे पर सो रही है।"],
    "Thai": ["แมวนอนอยู่บนโซฟา"],
    "emoji": ["😀😀😀🎉", "🎉🎉🎉 wow 😀😀😀"],
    "numbers": ["3.14159 2.71828 1.41421", "42, 43!"],
    "k-mers": ["ATGCGT TGCGTA GCGTAC CGTACG", "MKTAYIAKQR QISFVKSHFS"],
    "random words": ["blorf snig quaxel wibber tronk", "xk vq zzt brr"],
    "signs": ["", "--- ... ---"],
}
