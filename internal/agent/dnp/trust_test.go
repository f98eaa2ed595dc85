package dnp

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// A revocation stays in the list when its node has new keys. Later lists that say nothing new about the node do not end its sessions: the
// end that accepts could not request another one, and both ends would call the link broken.
func TestSessionOutlivesRevocationOfOthers(t *testing.T) {
	const dir = grid.XMinus // this end accepts
	d, _ := halfWithSession(t, agenttest.NodeConfig(t), dir)
	denial := func(node fault.NodeID, before int64) pki.Denial {
		return pki.Denial{Identity: pki.NodeIdentity(d.Config.Cluster, node, fault.HalfDNP), Before: time.Unix(before, 0)}
	}
	for i, step := range []struct {
		what   string
		denied []pki.Denial
		keeps  bool
	}{
		{"the list is about others", []pki.Denial{denial("n9", 100)}, true},
		{"the peer is revoked", []pki.Denial{denial("n9", 100), denial("n1-0-0", 100)}, false},
		{"others are revoked", []pki.Denial{denial("n1-0-0", 100), denial("n8", 200)}, true},
		{"others are not revoked any more", []pki.Denial{denial("n1-0-0", 100)}, true},
		{"the peer is revoked again", []pki.Denial{denial("n1-0-0", 300)}, false},
		{"it is not revoked any more", nil, true},
		{"it is revoked as before", []pki.Denial{denial("n1-0-0", 300)}, false},
	} {
		d.OnSession(dir, torus.NewSession(uint32(10+i), [torus.KeySize]byte{1}, [torus.KeySize]byte{2})) // with the peer's present keys
		d.Trust.Registry.Set(step.denied)
		d.Trust.Version.Add(1)
		d.trustChanged()
		if _, has := d.keys[dir.Index()].Current(); has != step.keeps {
			t.Errorf("%s: the link has a session: %t, want %t", step.what, has, step.keeps)
		}
	}
}

// A restarted half keeps the sessions of its copy if they began under the list in force, or outlived it.
func TestResumedSessionOutlivesKnownList(t *testing.T) {
	const dir = grid.XMinus
	cfg := agenttest.NodeConfig(t)
	denied := []pki.Denial{{Identity: pki.NodeIdentity(cfg.Cluster, "n1-0-0", fault.HalfDNP), Before: time.Unix(100, 0)}}
	for _, life := range []struct {
		what    string
		version uint64
		late    bool // the list is not read at the start
		keeps   bool
	}{
		{"the list came while no half ran", 3, false, false},
		{"the list is the one of the last life", 3, false, true},
		{"that list is not read at the start", 3, true, false},
		{"the list was read late in the last life", 3, false, true},
		{"a newer list came while no half ran", 4, false, false},
	} {
		t.Run(life.what, func(t *testing.T) {
			d, _ := halfWithSession(t, cfg, dir)
			if life.late {
				d.trustChanged()
			}
			d.Trust.Registry.Set(denied)
			d.Trust.Version.Store(life.version)
			d.trustChanged()
			if _, has := d.keys[dir.Index()].Current(); has != life.keeps {
				t.Errorf("the link has a session: %t, want %t", has, life.keeps)
			}
		})
	}
}
