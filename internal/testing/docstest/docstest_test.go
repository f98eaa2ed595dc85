package docstest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

const top = "../../.."

// Every command of every page has an existing test or a mark, and the list has no others.
func TestEveryCommandIsRunOrMarked(t *testing.T) {
	runs, err := Runs()
	if err != nil {
		t.Fatal(err)
	}
	used := make(map[string]bool)
	pages, err := Pages(top)
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		commands, err := Read(top, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range commands {
			if c.Prose {
				continue
			}
			used[c.Text] = true
			if _, is := runs[c.Text]; !is {
				t.Errorf("%v: it does not stand in internal/testing/docstest/commands.txt, which says who runs it", c)
			}
		}
	}
	if len(used) < 200 {
		t.Errorf("only %d commands are found: the search is wrong", len(used))
	}
	texts := make(map[string]string) // by package
	for command, how := range runs {
		if !used[command] {
			t.Errorf("commands.txt has %q, which no page gives", command)
		}
		if how.Test == "" {
			continue
		}
		if _, read := texts[how.Package]; !read {
			texts[how.Package] = testsOf(t, how.Package)
		}
		text := texts[how.Package]
		if !regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(how.Test) + `\(`).MatchString(text) {
			t.Errorf("commands.txt says that %s in %s runs %q: there is no such test", how.Test, how.Package, command)
		}
		if strings.HasPrefix(how.Test, "TestReadme") { // they read them here
			continue
		}
		if lacks := lacking(command, text); len(lacks) > 0 {
			t.Errorf("commands.txt says that %s in %s runs %q: no test there has the words %q", how.Test, how.Package, command, lacks)
		}
	}
}

var word = regexp.MustCompile(`^(--)?[a-z][a-z-]+$`)

// lacking returns the words of a command that the tests lack: its subcommands, side by side, and its flags. Later words
// may be another name.
func lacking(command, tests string) (out []string) {
	words, err := Words(command)
	if err != nil {
		return []string{err.Error()}
	}
	for i, w := range words[1:] {
		w, _, _ = strings.Cut(w, "=")
		want := regexp.QuoteMeta(w)
		switch {
		case !word.MatchString(w):
			continue
		case strings.HasPrefix(w, "--") || i == 0:
		case i == 1 && slices.Contains(Programs, words[0]):
			want = regexp.QuoteMeta(words[1]) + "[\"`, ]+" + want
		default:
			continue
		}
		if !regexp.MustCompile("[\"` ]" + want + "[\"` =]").MatchString(tests) {
			out = append(out, w)
		}
	}
	return out
}

// testsOf is the text of a package's tests without lines that are comments alone.
func testsOf(t *testing.T, pkg string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(top, filepath.FromSlash(pkg), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if !strings.HasPrefix(strings.TrimSpace(line), "//") {
				text.WriteString(line)
			}
		}
	}
	return text.String()
}

func TestLacking(t *testing.T) {
	const tests = `run("cluster", "add-node", "--renew", id, "--out="+dir); shell("systemctl start it --now ")`
	for command, want := range map[string][]string{
		"lofamoctl cluster add-node --renew n1-0-1 --out hall7": nil,
		"lofamoctl cluster add-node hall7 --wait=1":             {"--wait"},
		"lofamoctl cluster rotate-keys --out x":                 {"rotate-keys"},
		"lofamoctl cluster start --out x":                       {"start"},
		"systemctl start --now some-unit":                       nil,
		"systemctl stop 'it":                                    {"systemctl stop 'it: a quotation has no end"},
	} {
		if got := lacking(command, tests); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	page := strings.Join([]string{
		"# Title", "", "Say `lofamoctl get nodes`, or `lofamoctl`, or `make`.", "    not indented behind an empty line", "", "## Below", "",
		"    make build && export PATH=x     # a remark", "    lofamoctl mask a --reason 'two  spaces # in it'  a remark",
		"    lofamoctl watch &  # more", "    key: value", "",
		"```console", "$ lofamo-supervisor run --config a.yaml", "output", "```", "", "```yaml", "make: believe", "```", "",
		"    lofamoctl down", "",
		"    link=$(lofamoctl web | tail -1)", "    A_B=c lofamoctl map", "    Type=notify", "",
		"```sh", "# a remark", "for s in s1 s2; do", "  munge --any $s  # more", "done", "```",
	}, "\n")
	if err := os.WriteFile(filepath.Join(dir, "page.md"), []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Read(dir, "page.md")
	if err != nil {
		t.Fatal(err)
	}
	want := []Command{
		{"page.md", 3, "Title", "lofamoctl get nodes", true},
		{"page.md", 8, "Below", "make build && export PATH=x", false},
		{"page.md", 9, "Below", "lofamoctl mask a --reason 'two  spaces # in it'", false},
		{"page.md", 10, "Below", "lofamoctl watch &", false},
		{"page.md", 14, "Below", "lofamo-supervisor run --config a.yaml", false},
		{"page.md", 22, "Below", "lofamoctl down", false},
		{"page.md", 24, "Below", "link=$(lofamoctl web | tail -1)", false},
		{"page.md", 25, "Below", "A_B=c lofamoctl map", false},
		{"page.md", 31, "Below", "munge --any $s", false},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestWords(t *testing.T) {
	for text, want := range map[string][]string{
		"a b  c":               {"a", "b", "c"},
		"a 'b c' d\"e f\" ''":  {"a", "b c", "de f", ""},
		"a &":                  {"a"},
		"a>b":                  {"a"},
		"a | b":                {"a"},
		"a --x='one two' 1,0,": {"a", "--x=one two", "1,0,"},
		"A_B=c d=e a x=y":      {"a", "x=y"},
		"x=$(a b --c d | e)":   {"a", "b", "--c", "d"},
	} {
		if got, err := Words(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v: want %q", text, got, err, want)
		}
	}
	if _, err := Words("a 'b"); err == nil {
		t.Error("a quotation without an end is taken")
	}
}

// Parse refuses and accepts the same commands as the program.
func TestParse(t *testing.T) {
	root := func() *cobra.Command {
		run := func(*cobra.Command, []string) error { panic("it was run") }
		root := &cobra.Command{Use: "p", RunE: run, Args: cobra.ArbitraryArgs}
		get := &cobra.Command{Use: "get nodes|links", RunE: run, Args: cobra.ArbitraryArgs}
		nodes := &cobra.Command{Use: "nodes [NODE]", RunE: run, Args: cobra.MaximumNArgs(1)}
		nodes.Flags().Int("limit", 0, "")
		audit := &cobra.Command{Use: "audit", RunE: run, Args: cobra.NoArgs}
		audit.Flags().Bool("all", false, "")
		audit.AddCommand(&cobra.Command{Use: "verify", RunE: run, Args: cobra.NoArgs})
		get.AddCommand(nodes)
		root.AddCommand(get, audit)
		root.PersistentFlags().String("dir", "", "")
		return root
	}
	for _, tc := range []struct {
		text      string
		is, prose bool // accepted in a block, in prose
	}{
		{"p get nodes", true, true}, {"p get nodes a --limit 3 --dir x", true, true}, {"p --dir x get nodes", true, true}, {"p audit",
			true, true}, {"p audit verify", true, true}, {"p get nodes --help", true, true},
		{"p get", false, true}, {"p", false, true}, {"p get nodes --limit", false, true}, {"p get nodes a b", false, true},
		{"p get planets", false, false}, {"p take", false, false}, {"p get nodes --most 3", false, false}, {"p get nodes --limit many",
			false, false},
	} {
		words, err := Words(tc.text)
		if err != nil {
			t.Fatal(err)
		}
		if err := Parse(root(), words, false); (err == nil) != tc.is {
			t.Errorf("%s: %v: want it taken: %v", tc.text, err, tc.is)
		}
		if err := Parse(root(), words, true); (err == nil) != tc.prose {
			t.Errorf("%s in prose: %v: want it taken: %v", tc.text, err, tc.prose)
		}
	}
}

func TestListRefuses(t *testing.T) {
	for _, list := range []string{"    a", "test only", "ci a", "machines", "person why", "other a", "ci\n    a\n    a",
		"machines why\n    a\n   b"} {
		if got, err := parseRuns(list); err == nil {
			t.Errorf("%q is taken: %v", list, got)
		}
	}
}
