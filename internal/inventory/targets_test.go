package inventory

import (
	"encoding/json"
	"os"
	"reflect"
	"testing"
	"testing/synctest"
	"time"
)

// The list has the metrics address of each member from its final configuration, and follows the inventory.
func TestTargetsFollowInventory(t *testing.T) {
	d, inv := made(t)
	check := func(when string, want map[string][]string) {
		t.Helper()
		var groups []struct {
			Targets []string
			Labels  map[string]string
		}
		if err := json.Unmarshal(read(t, d.file("prometheus-targets.json")), &groups); err != nil {
			t.Fatal(err)
		}
		got := map[string][]string{}
		for _, g := range groups {
			if len(g.Labels) != 2 || g.Labels["cluster"] != "hall7" {
				t.Errorf("%s: labels %v", when, g.Labels)
			}
			got[g.Labels["job"]] = g.Targets
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	check("nodes serve none", map[string][]string{"lofamo-supervisor": {"10.0.0.101:7947", "10.0.0.102:7947", "10.0.0.103:7947"}})

	if err := os.Mkdir(d.file("settings"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.file("settings", "supervisor.yaml"), []byte("http: 0.0.0.0:9947\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	inv.Ports.AgentHTTP = 7102
	inv.Spares = nil
	if _, err := d.Update(inv); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{"lofamo-supervisor": {"10.0.0.101:9947", "10.0.0.102:9947", "10.0.0.103:9947"}}
	l, err := inv.Layout()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range l.Nodes {
		want["lofamo-agent"] = append(want["lofamo-agent"], n.HTTP)
	}
	if len(l.Nodes) != 8 {
		t.Fatalf("%d nodes", len(l.Nodes))
	}
	check("with settings and nodes", want)
}

func TestReachableAddressOfListener(t *testing.T) {
	for _, tt := range [][3]string{
		{"", "10.0.0.1:7100", ""}, {"10.1.0.1:7102", "10.0.0.1:7100", "10.1.0.1:7102"}, {"0.0.0.0:7102", "10.0.0.1:7100", "10.0.0.1:7102"},
		{":7102", "[fd00::1]:7100", "[fd00::1]:7102"}, {"[::]:7102", "10.0.0.1:7100", "10.0.0.1:7102"},
		{"127.0.0.1:7102", "10.0.0.1:7100", ""}, {"[::1]:7102", "[fd00::1]:7100", ""}, {"127.0.0.1:7102", "127.0.0.5:7100", "127.0.0.1:7102"},
		{"n1:7102", "10.0.0.1:7100", "n1:7102"},
	} {
		if got := reached(tt[0], tt[1]); got != tt[2] {
			t.Errorf("%s of %s: %s, want %s", tt[0], tt[1], got, tt[2])
		}
	}
}

// The earliest end of a certificate counts, until all certificates are renewed.
func TestEarliestCertificateEndCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, inv := made(t)
		ends := func() time.Time {
			t.Helper()
			at, err := d.Ends()
			if err != nil {
				t.Fatal(err)
			}
			return at
		}
		first := ends()
		// A key or a web server's certificate that an operator keeps beside his settings is not looked at.
		if err := os.MkdirAll(d.file("settings"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(d.file("settings", "web.pem"), []byte("no certificate"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := ends(); !got.Equal(first) {
			t.Errorf("beside a file of somebody else: %s, want %s", got, first)
		}
		if in := time.Until(first); in < 364*24*time.Hour || in > 366*24*time.Hour {
			t.Errorf("they end in %s", in)
		}
		time.Sleep(48 * time.Hour)
		if _, err := d.Update(inv, "n1-0-1"); err != nil {
			t.Fatal(err)
		}
		if got := ends(); !got.Equal(first) {
			t.Errorf("with one of another time: %s, want %s", got, first)
		}
		for _, step := range []Step{StepAdd, StepUse, StepRemove} {
			if _, err := d.Rotate(step, false); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := ends(), first.Add(48*time.Hour); !got.Equal(want) {
			t.Errorf("all made anew: %s, want %s", got, want)
		}
	})
}
