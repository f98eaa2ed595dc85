package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestScenarios plays every scenario of testdata on every torus that it names, with several seeds; under the race
// detector on the smallest, with one.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d scenarios, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			s, err := ParseScript(f)
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			tori := s.Tori
			if testing.Short() {
				tori = tori[:1]
			}
			for _, d := range tori {
				t.Run(d.String(), func(t *testing.T) {
					t.Parallel()
					seeds := uint64(3)
					if d.Nodes() > 10 || testing.Short() {
						seeds = 1 // time grows with the nodes
					}
					for seed := uint64(1); seed <= seeds; seed++ {
						if err := s.Run(d, seed); err != nil {
							t.Errorf("%s, torus %s, seed %d: %v", file, d, seed, err)
						}
					}
				})
			}
		})
	}
}

// TestScriptRefusesUnknownLines shows that a scenario cannot pass by being misunderstood.
func TestScriptRefusesUnknownLines(t *testing.T) {
	for _, tc := range []struct{ script, names string }{
		{"settle", "0 tori"},
		{"torus 2", "0 steps"},
		{"torus 2x\nsettle", "dims"},
		{"torus 2\nsettle\nexpect 1,0,0 node FAILED within 1s", "not so within 1s"},
		{"torus 2\nsettle\nmap 0,0,0 node FAILED", "it is NORMAL"},
		{"torus 2\nsettle\nbegin\nsensor 0,0,0 memory FAILED\nrun 3s\nspared 1,0,0", "a bystander"},
		{"torus 2\nsettle\nbegin\nsensor 0,0,0 memory FAILED\nrun 3s\nnever 0,0,0 memory FAILED", "it was so"},
		{"torus 2\nexplode 0,0,0", "unknown command"},
		{"torus 2\nkill 5,0,0 host", "outside"},
		{"torus 2\nkill 0,0,0 foot", "half"},
		{"torus 2\ncut 0,0,0 Y+", "no links"},
		{"torus 2\nsettle\nexpect 0,0,0 node FAILED soon", "has no value"},
		{"torus 2\ninterfaces 9\nsettle", "want one number, 1 to 8"},
		{"torus 2\ncut-service 0,0,0 1", "want 0 to 0"},
		{"torus 2\nlose-service 0,0,0 often", "often"},
		{"torus 2\nsettle\ncut-supervisor\nrun 1s\nsensor 0,0,0 memory FAILED\nrun 1s\ndelivered 0,0,0 1s", "have not arrived within 1s"},
		{"torus 2\ndelivered 0,0,0 soon", "soon"},
		{"torus 2\npreset slow\nsettle", "preset"},
		{"torus 2\nsupervisors 8\nsettle", "want one number, 1 to 7"},
		{"torus 2\nkill-supervisor s3", "want s0 to s2"},
		{"torus 2\nkill-supervisor", "none given"},
		{"torus 2\npart-supervisors s0 | x", "want s0 to s2"},
		{"torus 2\nrestart everything", "all supervisors"},
		{"torus 2\nsupervisor-cut s0 0,0,0", "from"},
		{"torus 2\nsupervisor-cut s0 from 9,9,9", "outside"},
		{"torus 2\nstore broken", "slow"},
		{"torus 2\nstore slow soon", "soon"},
		{"torus 2\nkill-fraction 2", "above 0 and at most 1"},
		{"torus 2\ncold-start soon", "soon"},
		{"torus 2\nflap 0,0,0 X+", "want a time"},
		{"torus 2\nclock 0,0,0 soon", "soon"},
		{"torus 2\nsettle soon", "soon"},
		{"torus 2\nsettle\nheadless", "leads"},
		{"torus 2\nsettle\nkill-supervisor s0 s1\nrun 3s\nleads 1s", "nobody does"},
		{"torus 2\nsettle\nsensor 0,0,0 memory FAILED\nrun 3s\nrevision", "were committed"},
		{"torus 2\nsettle\npart-supervisors s0 | s1 s2\nrun 5s\nkill 0,0,0 host\nrun 5s\nsame", "another map"},
	} {
		s, err := ParseScript(strings.NewReader(tc.script))
		if err == nil {
			err = s.Run(s.Tori[0], 1)
		}
		if err == nil || !strings.Contains(err.Error(), tc.names) {
			t.Errorf("%q: %v; want an error that names %q", tc.script, err, tc.names)
		}
	}
}

// TestLeaderKnowsDefaultLinkGrace: the leader assumes the same default grace period for links as a DNP half.
func TestLeaderKnowsDefaultLinkGrace(t *testing.T) {
	if awareness.DefaultLinkGrace != dnpcore.DefaultLinkGrace {
		t.Errorf("the leader assumes %s, want %s", awareness.DefaultLinkGrace, dnpcore.DefaultLinkGrace)
	}
}

// TestColdStartCountsAsBoot: copies belong to one boot of the machine, so no half continues in its old epoch after another.
func TestColdStartCountsAsBoot(t *testing.T) {
	p := preset(t, config.PresetDefault)
	w, err := New(Config{Dims: grid.Dims{X: 2, Y: 2, Z: 2}, Periods: p, Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	w.Run(2 * time.Second)
	type epochs struct{ host, dnp fault.Epoch }
	before := map[fault.NodeID]epochs{}
	for _, n := range w.nodes {
		before[n.id()] = epochs{n.host.epoch, n.dnp.epoch}
	}
	r := &runner{World: w, periods: p}
	if err := r.coldStart("1s"); err != nil {
		t.Fatal(err)
	}
	w.Run(2 * time.Second)
	for _, n := range w.nodes {
		if was := before[n.id()]; n.host.epoch <= was.host || n.dnp.epoch <= was.dnp {
			t.Errorf("%s goes on in epochs %d and %d", n.id(), n.host.epoch, n.dnp.epoch)
		}
	}
}

// TestSameSeedReplaysSameRun shows that a seed decides everything.
func TestSameSeedReplaysSameRun(t *testing.T) {
	play := func(seed uint64) string {
		w, err := New(Config{Dims: grid.Dims{X: 2, Y: 2, Z: 2}, Periods: preset(t, config.PresetDefault), Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		w.Run(2 * time.Second)
		w.nodes[3].host.kill()
		w.Run(2 * time.Second)
		var b strings.Builder
		for _, k := range w.Known() {
			fmt.Fprintln(&b, k.At.UnixNano(), k)
		}
		return b.String()
	}
	first := play(7)
	if first == "" || play(7) != first {
		t.Error("the same seed gave another history")
	}
	if play(8) == first {
		t.Error("another seed gave the same history")
	}
}

func preset(t *testing.T, name string) config.Periods {
	t.Helper()
	p, err := config.Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
