package inventory

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
)

const treeConf = `# a tree
SwitchName=s0 Nodes=n[01-03,10],login LinkSpeed=1
switchname=s1 nodes="m[8-10]"   # two more
SwitchName=s2 Nodes=a[1-2]b[07-08]-ib,\
c1

SwitchName=top Switches=s[0-2]
`

func TestReadSwitches(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{treeConf, "a1b07-ib=s2 a1b08-ib=s2 a2b07-ib=s2 a2b08-ib=s2 c1=s2 login=s0 m10=s1 m8=s1 m9=s1 n01=s0 n02=s0 n03=s0 n10=s0"},
		{"BlockName = b1 Nodes= n[1-2]\r\nBlockName=b2 Nodes=n[3]\r\nBlockSizes=2,4\r\n", "n1=b1 n2=b1 n3=b2"},
		{"SwitchName=s Nodes=n[098-101]", "n098=s n099=s n100=s n101=s"},
	} {
		got, err := ReadSwitches(strings.NewReader(tc.text))
		var list []string
		for _, name := range slices.Sorted(maps.Keys(got)) {
			list = append(list, name+"="+got[name])
		}
		if text := strings.Join(list, " "); err != nil || text != tc.want {
			t.Errorf("%q: %s, %v; want %s", tc.text, text, err, tc.want)
		}
	}
}

func TestReadSwitchesRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "no node: want lines",
		"# only\n\n":                         "no node: want lines",
		"Nodes=n1":                           "line 1: want either SwitchName or BlockName",
		"SwitchName=s1 BlockName=b Nodes=n1": "line 1: want either SwitchName or BlockName",
		"SwitchName=s1":                      "line 1: SwitchName=s1: want either Nodes or Switches",
		"SwitchName=s1 Nodes=n1 Switches=s2": "want either Nodes or Switches",
		"BlockName=b1 Switches=s1":           "given Switches: want Nodes for a block",
		"\nSwitchName=s1 Knoten=n1":          `line 2: given "Knoten": want SwitchName, Switches, Nodes`,
		"SwitchName=s1 Nodes = = n1":         `given "Nodes = =": want KEY=VALUE`,
		"SwitchName=s1 Nodes":                "want KEY=VALUE",
		"SwitchName=s1 Nodes=":               `given "Nodes =": want KEY=VALUE`,
		"SwitchName=s1 Nodes=\"\"":           "Nodes: given nothing",
		"SwitchName=s1 Nodes=n1 nodes=n2":    "nodes: want it once",
		"SwitchName=-s Nodes=n1":             "want a name of 1 to 63 letters",
		"SwitchName=s1 Nodes=n1\nSwitchName=s1 Nodes=n2":           "line 2: SwitchName=s1: want each name once: line 1 has it",
		"SwitchName=s1 Nodes=n1\nSwitchName=s2 Nodes=n[0-3]":       "line 2: SwitchName=s2: Nodes: given n1: want each node once: line 1",
		"SwitchName=s1 Nodes=n1\nBlockName=b2 Nodes=n2":            "want only switches or only blocks",
		"SwitchName=s1 Nodes=n1\nSwitchName=t Switches=s[1-2]":     "line 2: Switches: given s2: want the SwitchName of another line",
		"SwitchName=s1 Nodes=n[1-":                                 `given "n[1-": want ranges between "[" and "]"`,
		"SwitchName=s1 Nodes=n1]":                                  `want "[" before "]"`,
		"SwitchName=s1 Nodes=n]1[2]":                               `want ranges between`,
		"SwitchName=s1 Nodes=n[]":                                  `the range "": want a number`,
		"SwitchName=s1 Nodes=n[3-1]":                               `the range "3-1": want`,
		"SwitchName=s1 Nodes=n[1-016]":                             `the range "1-016": want`,
		"SwitchName=s1 Nodes=n[01-9]":                              `the range "01-9": want`,
		"SwitchName=s1 Nodes=n[x]":                                 `the range "x": want`,
		"SwitchName=s1 Nodes=n1,,n2":                               "want names of 1 to 63",
		"SwitchName=s1 Nodes=n[1-999999999]":                       "want at most 131072 names in the whole file",
		"SwitchName=s1 Nodes=n[1-1000][1-1000]":                    "want at most 131072 names in the whole file",
		"SwitchName=s1 Nodes=" + strings.Repeat("[1]", 70):         "want names of 1 to 63",
		"SwitchName=s1 Nodes=n[1-9]" + strings.Repeat("x", 1<<20):  "want names of 1 to 63",
		"SwitchName=s1 Nodes=n1 \\":                                `line 1: want another line after "\"`,
		strings.Repeat("SwitchName=s1\n", 100):                     "the lines after these were not read",
		strings.Repeat("#", maxSlurmFile+1):                        "want at most that",
		"SwitchName=s1 Nodes=n1 \\\n LinkSpeed=3\nSwitchName=s2 x": `line 3: given "x"`,
	} {
		got, err := ReadSwitches(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, %v; want %q", text, got, err, want)
		}
		if err != nil && len(err.Error()) > 8<<10 {
			t.Errorf("%.80q: an error of %d bytes", text, len(err.Error()))
		}
	}
	if _, err := LoadSwitches(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing file: no error")
	}
}

// Nodes get their switch as a label, and their places follow from it.
func TestPlanTakesSwitchesFromSlurm(t *testing.T) {
	var text strings.Builder
	text.WriteString("cluster: hall7\nsupervisors: [{id: s1, address: 10.0.0.101}]\nnodes:\n")
	for i := range 8 {
		fmt.Fprintf(&text, "- {id: n%d, service: 10.0.1.%d}\n", i+1, i+1)
	}
	text.WriteString("- {id: own, service: 10.0.1.20, labels: {switch: mine}}\nspares: [{id: x1, service: 10.0.1.30}]\n")
	file := filepath.Join(t.TempDir(), "inventory.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	switches, err := ReadSwitches(strings.NewReader("SwitchName=s1 Nodes=n[1-4],own\nSwitchName=s2 Nodes=n[5-7],other\n"))
	if err != nil {
		t.Fatal(err)
	}
	inv, added, err := Plan(file, Inventory{}, switches)
	if err != nil || added.Labelled != 7 || added.Places != 9 || !slices.Equal(added.Unknown, []string{"n8", "x1"}) {
		t.Fatalf("%+v, %v", added, err)
	}
	if inv.Nodes[0].Labels["switch"] != "s1" || inv.Nodes[6].Labels["switch"] != "s2" || inv.Nodes[8].Labels["switch"] != "mine" {
		t.Errorf("%+v", inv.Nodes)
	}
	if _, _, err := Plan(file, Inventory{}, Switches{"own": "s1"}); err == nil || !strings.Contains(err.Error(), "names none of its nodes") {
		t.Errorf("a file of another cluster: %v", err)
	}
}

// The keys of failure domains may be those of Kubernetes: places are chosen by them, and supervisors begin with them.
func TestInventoryNamesDomainLabels(t *testing.T) {
	const key = "topology.kubernetes.io/rack"
	var text strings.Builder
	text.WriteString("cluster: hall7\ndomainLabels: [" + key + "]\nsupervisors: [{id: s1, address: 10.0.0.101}]\nnodes:\n")
	for i := range 8 {
		fmt.Fprintf(&text, "- {id: n%d, service: 10.0.1.%d, labels: {%s: r%d}}\n", i, i+1, key, i%4)
	}
	file := filepath.Join(t.TempDir(), "inventory.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	inv, _, err := Plan(file, Inventory{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := inv.Layout()
	if err != nil || !slices.Equal(l.Supervisor(0).DomainLabels, []string{key}) {
		t.Errorf("%v, %v", l.Supervisor(0).DomainLabels, err)
	}
	inv.DomainLabels = slices.Repeat([]string{key}, 17)
	if err := inv.Validate(); err == nil || !strings.Contains(err.Error(), "domainLabels: given ["+key+" ") ||
		!strings.Contains(err.Error(), "domainLabels[1]: given "+key+": want each key once") {
		t.Errorf("17 domain labels: %v", err)
	}
	inv.DomainLabels = nil
	if l, err = inv.Layout(); err != nil || !slices.Equal(l.Supervisor(0).DomainLabels, fault.DomainLabels()) {
		t.Errorf("without domainLabels: %v, %v", l.Supervisor(0).DomainLabels, err)
	}
}

func FuzzReadSwitches(f *testing.F) {
	f.Add(treeConf)
	f.Add("BlockName=b1 Nodes=n[1-2]\nBlockSizes=2,4\n")
	f.Add("SwitchName=s1 Nodes=n[1-100][1-100][1-100]\nSwitchName=s2 Switches=s1")
	f.Fuzz(func(t *testing.T, text string) {
		const most = 1_000 // long lists cost time and show nothing new
		got, err := readSwitches(strings.NewReader(text), most)
		if len(got) > most || err == nil && len(got) == 0 {
			t.Fatalf("%d nodes, %v", len(got), err)
		}
		for node, of := range got {
			if !fault.IsName(node) || !fault.IsName(of) {
				t.Fatalf("node %q below %q", node, of)
			}
		}
		if err != nil && strings.Count(err.Error(), "\n") > maxSlurmBad {
			t.Fatalf("a long error: %v", err)
		}
	})
}
