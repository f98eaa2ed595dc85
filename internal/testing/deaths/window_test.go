package deaths

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/inventory"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestDividedConfigurationsAreThoseOfOneHalfEach: each half of a node gets a valid configuration that only it can run with, its own keys
// and not the other's, and the address that the other one has as its peer.
func TestDividedConfigurationsAreThoseOfOneHalfEach(t *testing.T) {
	dir := t.TempDir()
	cluster := filepath.Join(dir, "cluster")
	file := filepath.Join(dir, "inventory.yaml")
	if err := os.WriteFile(file, []byte(describe(LeastNodes, true)), 0o600); err != nil {
		t.Fatal(err)
	}
	inv, err := inventory.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := inventory.Open(cluster).Init(inv); err != nil {
		t.Fatal(err)
	}
	divided := map[fault.Half]config.Agent{}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		root := filepath.Join(dir, h.String())
		if err := os.CopyFS(root, os.DirFS(filepath.Join(cluster, "nodes", nodeID(0)))); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(root, "agent.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var cfg map[string]any
		if err := yaml.Unmarshal(text, &cfg); err != nil {
			t.Fatal(err)
		}
		if err := divide(root, cfg, h.String()); err != nil {
			t.Fatal(err)
		}
		if text, err = yaml.Marshal(cfg); err != nil {
			t.Fatal(err)
		}
		var a config.Agent
		if err := yaml.UnmarshalStrict(text, &a); err != nil {
			t.Fatal(err)
		}
		if err := a.Validate(); err != nil {
			t.Errorf("%s: %v", h, err)
		}
		if here := a.HalvesHere(); !slices.Equal(here, []fault.Half{h}) {
			t.Errorf("%s: halves %v may run with the configuration: want only that one", h, here)
		}
		keys, err := filepath.Glob(filepath.Join(root, "pki", "*.key"))
		if err != nil || len(keys) != 1 || !strings.Contains(keys[0], h.String()) {
			t.Errorf("%s: keys %v, %v: want its own", h, keys, err)
		}
		divided[h] = a
	}
	if host, card := divided[fault.HalfHost].Window, divided[fault.HalfDNP].Window; host.Listen != card.Peer || card.Listen != host.Peer {
		t.Errorf("windows %+v and %+v: want that each has the other as its peer", host, card)
	}
}

// TestRoundTripIsReadFromPing: the longest way of a ping counts.
func TestRoundTripIsReadFromPing(t *testing.T) {
	script, keys := io.Pipe()
	m := &guest{name: "n0", keys: keys, console: newFeed[string]()}
	go func() {
		if line, err := bufio.NewReader(script).ReadString('\n'); err == nil && strings.HasPrefix(line, "ping ") {
			m.consoleLine([]byte("10 packets transmitted, 10 packets received, 0% packet loss\r\n"))
			m.consoleLine([]byte("round-trip min/avg/max = 0.402/1.213/7.500 ms\r\n"))
		}
	}()
	got, err := (&ring{nodes: []*guest{m}}).roundTrip(t.Context())
	if want := 7500 * time.Microsecond; err != nil || got != want {
		t.Errorf("%s, %v: want %s", got, err, want)
	}
}
