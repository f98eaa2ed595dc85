package inventory

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/pki"
)

// empty is the inventory of a cluster whose nodes enrol.
func empty(ids ...string) Inventory {
	inv := Inventory{Cluster: "hall7", Dims: "0x0x0"}
	for i, id := range ids {
		inv.Supervisors = append(inv.Supervisors, Supervisor{ID: id, Address: "10.0.0." + string(rune('1'+i))})
	}
	return inv
}

func keepIn(t *testing.T, inv Inventory, kept Kept, now time.Time) Kept {
	t.Helper()
	out, err := inv.Keep(filepath.Join(t.TempDir(), "hall"), kept, now)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// changed returns the names of what differs.
func changed(a, b Kept) (out []string) {
	for name, files := range b {
		for base, content := range files {
			if !bytes.Equal(a[name][base], content) {
				out = append(out, name+"/"+base)
			}
		}
	}
	slices.Sort(out)
	return out
}

func TestKeptClusterStaysTheSame(t *testing.T) {
	inv, now := empty("s1", "S_2", "s3"), time.Now()
	first := keepIn(t, inv, nil, now)
	var names []string
	for name := range first {
		names = append(names, name)
	}
	want := inv.KeptNames()
	slices.Sort(names)
	slices.Sort(want)
	if !slices.Equal(names, want) || !slices.Contains(want, "supervisor-s-2") {
		t.Fatalf("kept %q: want %q", names, want)
	}
	for name, files := range first {
		for base, b := range files {
			if len(b) == 0 {
				t.Errorf("%s/%s: is empty", name, base)
			}
			if secret := base == caKey; secret && name != KeptAuthority {
				t.Errorf("%s has %s: want it in %s alone", name, base, KeptAuthority)
			}
		}
	}
	if len(first[KeptCA]) != 1 {
		t.Errorf("%s has %d files: want nothing but certificates", KeptCA, len(first[KeptCA]))
	}
	if got := changed(first, keepIn(t, inv, first, now)); len(got) > 0 {
		t.Errorf("the same again changes %q", got)
	}

	lost := Kept{}
	for name, files := range first {
		if name != "viewer" && name != "supervisor-s3" {
			lost[name] = files
		}
	}
	again := keepIn(t, inv, lost, now)
	for _, of := range changed(first, again) {
		if !strings.HasPrefix(of, "viewer/") && !strings.HasPrefix(of, "supervisor-s3/") {
			t.Errorf("the loss of two members changes %s", of)
		}
	}
	third := again["supervisor-s3"]["supervisor.key"]
	if len(again["viewer"]["viewer.key"]) == 0 || bytes.Equal(third, first["supervisor-s3"]["supervisor.key"]) {
		t.Error("no new keys in place of lost ones")
	}

	crossed := Kept{}
	maps.Copy(crossed, first)
	crossed["viewer"] = maps.Clone(first["viewer"])
	crossed["viewer"]["viewer.key"] = first["operator"]["operator.key"]
	if got := changed(first, keepIn(t, inv, crossed, now)); !slices.Equal(got, []string{"viewer/viewer.key", "viewer/viewer.pem"}) {
		t.Errorf("a pair that does not match: changes %q", got)
	}

	late := keepIn(t, inv, first, now.Add(300*24*time.Hour))
	for _, of := range []string{"supervisor-s1/supervisor.pem", "supervisor-s1/supervisor-ecdsa.key", "operator/operator.pem"} {
		if !slices.Contains(changed(first, late), of) {
			t.Errorf("300 days later: %s is not renewed", of)
		}
	}
	if got := changed(Kept{KeptAuthority: first[KeptAuthority], KeptCA: first[KeptCA]}, Kept{KeptAuthority: late[KeptAuthority],
		KeptCA: late[KeptCA]}); len(got) > 0 {
		t.Errorf("a renewal changes %q", got)
	}

	moved := empty("s1", "S_2", "s3")
	moved.Supervisors[1].Address = "10.0.0.9"
	got := changed(first, keepIn(t, moved, first, now))
	if !slices.Contains(got, "supervisor-s-2/supervisor.pem") || slices.Contains(got, "supervisor-s1/supervisor.pem") {
		t.Errorf("a new address of one supervisor changes %q", got)
	}
}

func TestKeptClusterIsNotReplaced(t *testing.T) {
	inv, now := empty("s1"), time.Now()
	first := keepIn(t, inv, nil, now)
	without := Kept{"supervisor-s1": first["supervisor-s1"], KeptAuthority: {}}
	other := empty("s1")
	other.Cluster = "hall8"
	nodes := empty("s1")
	nodes.Nodes = []Node{{}}
	huge := Kept{KeptAuthority: first[KeptAuthority], "viewer": {"viewer.pem": make([]byte, maxKept+1)}}
	garbage := Kept{KeptAuthority: {inventoryFile: []byte("cluster: [")}}
	cut := Kept{KeptAuthority: {inventoryFile: first[KeptAuthority][inventoryFile]}}
	foreign := Kept{}
	maps.Copy(foreign, first)
	foreign[KeptAuthority] = keepIn(t, inv, nil, now)[KeptAuthority]
	for name, tc := range map[string]struct {
		inv  Inventory
		kept Kept
		want string
	}{
		"the authority is lost":    {inv, without, "the Secret for authority is missing, but the one for supervisor-s1 exists"},
		"another cluster":          {other, first, "cluster: given hall8: want hall7"},
		"nodes have bundles":       {nodes, nil, "nodes"},
		"one name for two":         {empty("a_b", "a-b", "c"), nil, "supervisors a_b and a-b"},
		"too large":                {inv, huge, "viewer: has more than 1048576 bytes"},
		"no inventory":             {inv, garbage, "authority: "},
		"an authority without key": {inv, cut, "authority: ca.pem is missing"},
		"another authority":        {inv, foreign, "authority: has not issued any certificate"},
	} {
		if _, err := tc.inv.Keep(filepath.Join(t.TempDir(), "hall"), tc.kept, now); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v: want %q", name, err, tc.want)
		}
	}
}

func TestKeptIssuerLivesAsLongAsItsAuthority(t *testing.T) {
	first := keepIn(t, empty("s1"), nil, time.Now())
	ends := func(name, file string) time.Time {
		path := filepath.Join(t.TempDir(), file)
		if err := os.WriteFile(path, first[name][file], 0o600); err != nil {
			t.Fatal(err)
		}
		at, err := pki.Ends(path)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	authority, issuer := ends(KeptAuthority, caCert), ends("supervisor-s1", issuerCert)
	if issuer.Before(authority.Add(-time.Minute)) || issuer.Before(time.Now().Add(9*pki.IssuerValidity)) {
		t.Errorf("the issuer ends at %s, the authority at %s", issuer, authority)
	}
}
