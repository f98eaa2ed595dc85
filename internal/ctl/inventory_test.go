package ctl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/inventory"
)

// Nodes of a new cluster get their switches from Slurm, and nodes that are added later too.
func TestClusterInitTakesSlurmTopology(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	var text strings.Builder
	text.WriteString("cluster: hall7\nsupervisors: [{id: s1, address: 10.0.0.101}]\nnodes:\n")
	for i := range 4 {
		fmt.Fprintf(&text, "- {id: n%02d, service: 10.0.1.%d}\n", i+1, i+1)
	}
	file := write("inventory.yaml", text.String())
	slurm := write("topology.conf", "SwitchName=s1 Nodes=n[01-02]\nSwitchName=s2 Nodes=n[03,05]\nSwitchName=top Switches=s[1-2]\n")
	out := filepath.Join(dir, "hall7")
	got := run(t, nil, "cluster", "init", file, "--out", out, "--slurm-topology", slurm)
	if got.code != 0 || !strings.Contains(got.stdout, "has the label switch of 3 nodes from "+slurm) ||
		got.stderr != "lofamoctl: "+slurm+" names no switch of 1 node: n04\n" {
		t.Fatalf("%+v", got)
	}
	file = write("inventory.yaml", text.String()+"- {id: n05, service: 10.0.1.5}\n")
	if got = run(t, nil, "cluster", "add-node", file, "--out", out, "--slurm-topology", slurm); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	inv, err := inventory.Load(filepath.Join(out, "inventory.yaml"))
	if err != nil || len(inv.Nodes) != 5 || inv.Nodes[0].Labels["switch"] != "s1" || inv.Nodes[4].Labels["switch"] != "s2" {
		t.Errorf("%+v, %v", inv.Nodes, err)
	}
	bad := write("bad.conf", "SwitchName=s1 Nodes=n[02-01]\nNodes=n1\n")
	got = run(t, nil, "cluster", "init", file, "--out", filepath.Join(dir, "other"), "--slurm-topology", bad)
	if got.code == 0 || !strings.Contains(got.stderr, `bad.conf: line 1: SwitchName=s1: Nodes: given "n[02-01]": the range "02-01": want`) ||
		!strings.Contains(got.stderr, "line 2: want either SwitchName or BlockName") {
		t.Errorf("%+v", got)
	}
	if got = run(t, nil, "cluster", "add-node", "--renew", "n01", "--out", out, "--slurm-topology", slurm); got.code != command.ExitUsage {
		t.Errorf("%+v: want a usage error", got)
	}
	bundle := filepath.Join(out, "nodes", "n01")
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"rotate-keys", "--out", out, "--step", "drop"}, `--step: given "drop": want add, use or remove`},
		{[]string{"join", bundle, "--root", dir, "--anywhere", "--config", "mine"}, `--config: given "mine": want keep or replace`},
		{[]string{"issue", "reader", "anna", "--out", out}, `ROLE: given "reader": want viewer, operator, approver or executor`},
	} {
		got := run(t, nil, append([]string{"cluster"}, tc.args...)...)
		if got.code != command.ExitUsage || !strings.Contains(got.stderr, tc.want) {
			t.Errorf("%v: %+v: want a usage error with %q", tc.args, got, tc.want)
		}
	}
}

// TestRotateTellsToSignRevocationsAgain: only a change of the authority ends the list of revoked certificates.
func TestRotateTellsToSignRevocationsAgain(t *testing.T) {
	const again = "operators/operator.pem:\n  lofamoctl cert revoke viewer/none --reason 'sign the list again'\n"
	for _, authority := range []bool{false, true} {
		dir := t.TempDir()
		out, file := filepath.Join(dir, "hall7"), filepath.Join(dir, "inventory.yaml")
		if err := os.WriteFile(file, []byte("cluster: hall7\nsupervisors: [{id: s1, address: 10.0.0.101}]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := run(t, nil, "cluster", "init", file, "--out", out); got.code != 0 {
			t.Fatalf("%+v", got)
		}
		for _, step := range []string{"add", "use", "remove"} {
			args := []string{"cluster", "rotate-keys", "--out", out, "--step", step}
			if authority && step == "add" {
				args = append(args, "--authority")
			}
			got := run(t, nil, args...)
			if want := authority && step == "use"; got.code != 0 || strings.Contains(got.stdout, again) != want {
				t.Errorf("authority %t, step %s: %+v: want the command that signs the list again: %t", authority, step, got, want)
			}
		}
	}
}

// TestClusterInitOfNoNodes: a cluster that machines join has no torus to speak of.
func TestClusterInitOfNoNodes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "inventory.yaml")
	if err := os.WriteFile(file, []byte("cluster: hall7\nsupervisors: [{id: s1, address: 10.0.0.101}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "hall7")
	got := run(t, nil, "cluster", "init", file, "--out", out)
	if want := out + ": cluster hall7, 1 supervisor, no node yet: machines enrol\n"; got.code != 0 || !strings.HasPrefix(got.stdout, want) {
		t.Errorf("%+v: want %q first", got, want)
	}
}
