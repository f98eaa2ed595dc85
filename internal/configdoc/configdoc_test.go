package configdoc

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor/process"
	"github.com/lofamo/lofamo/internal/inventory"
)

const root = "../.."

func files(t *testing.T) map[string]string {
	t.Helper()
	out, err := Files(root)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestFilesAreCurrent(t *testing.T) {
	for name, want := range files(t) {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || string(got) != want {
			t.Errorf("%s is not current (%v): run make generate and commit", name, err)
		}
	}
}

// The files are YAML that the programs take, and say nothing but the defaults.
func TestFilesEqualDefaults(t *testing.T) {
	agent, supervisor, executor := config.Agent{}, config.Supervisor{}, process.Config{}
	for name, into := range map[string]any{"agent": &agent, "supervisor": &supervisor, "executor": &executor} {
		if err := config.ReadStrict(filepath.Join(root, "deploy/config", name+".yaml"), config.MaxNodesFile, into); err != nil {
			t.Error(err)
		}
	}
	for _, tc := range []struct{ got, want any }{{agent, config.DefaultAgent()}, {supervisor, config.DefaultSupervisor()},
		{executor, process.Default()}} {
		got, err := Defaults(tc.got)
		if err != nil {
			t.Fatal(err)
		}
		want, err := Defaults(tc.want)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := nothingLess(got), nothingLess(want); !reflect.DeepEqual(got, want) {
			t.Errorf("%T: the file says\n%v\nwant\n%v", tc.got, got, want)
		}
	}
}

// nothingLess leaves out what says nothing.
func nothingLess(m map[string]any) map[string]any {
	for k, v := range m {
		if inner, ok := v.(map[string]any); ok {
			nothingLess(inner)
		}
		if !set(v) {
			delete(m, k)
		}
	}
	return m
}

// Every key of every struct is there, and explained.
func TestEveryKeyIsExplained(t *testing.T) {
	s := Open(root)
	for _, tc := range []struct {
		pkg, name string
		of        any
	}{
		{"internal/config", "Agent", config.Agent{}}, {"internal/config", "Supervisor", config.Supervisor{}},
		{"internal/executor/process", "Config", process.Config{}}, {"internal/inventory", "Inventory", inventory.Inventory{}},
	} {
		fields, doc, err := s.Struct(tc.pkg, tc.name)
		if err != nil || doc == "" {
			t.Fatalf("%s: %v", tc.name, err)
		}
		explained(t, tc.name, fields)
		for f := range reflect.TypeOf(tc.of).Fields() {
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			found := false
			for _, d := range fields {
				found = found || d.Key == key
			}
			if !found {
				t.Errorf("%s.%s: not found in the source", tc.name, key)
			}
		}
	}
}

func explained(t *testing.T, prefix string, fields []Field) {
	for _, f := range fields {
		if f.Doc == "" || f.Type == "" {
			t.Errorf("%s.%s has no comment", prefix, f.Key)
		}
		explained(t, prefix+"."+f.Key, f.Fields)
	}
}

func TestPageShowsEveryField(t *testing.T) {
	fields := []Field{
		{Key: "on", Doc: "on says whether. Default no.", Type: "text"},
		{Key: "a", Doc: "a is b | c.", Type: "section", Fields: []Field{{Key: "n", Doc: "n counts.", Type: "number"},
			{Key: "list", Doc: "list of d.", Type: "list of section", List: true, Fields: []Field{
				{Key: "x", Doc: "x first.", Type: "text"}, {Key: "y", Doc: "y then.", Type: "true or false"},
			}}}},
	}
	const want = `# head

# on says whether. Default no.
on: "no"

# a is b | c.
a:
  # n counts.
  n: 3
  # list of d.
  #list:
  #  # x first.
  #- x:
  #  # y then.
  #  y: false
`
	defaults := map[string]any{"on": "no", "a": map[string]any{"n": 3.0, "list": nil}}
	if got := YAML("head", fields, defaults); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if got := Markdown(fields, defaults); !strings.Contains(got, "| `a.n` | number | `3` | n counts. |\n") ||
		!strings.Contains(got, "| `a.list[].y` |") || !strings.Contains(got, `b \| c`) {
		t.Errorf("%s", got)
	}
	if got := (keys{"Dims": "dims", "Interface": "interface"}).in(
		"Dims of it. Inside Dims, and Interface. Interface."); got != "Dims of it. Inside dims, and interface. Interface." {
		t.Error(got)
	}
}
