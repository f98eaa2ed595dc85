package local_test

import (
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/agent/local/jobs"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
)

// torus stands for the DNP halves of all nodes: a raised eureka reaches all nodes, and arrivals meet at once. The
// tests of internal/agent use the real DNP halves.
type torus struct {
	mu       sync.Mutex
	servers  map[fault.NodeID]*local.Server
	links    uint8
	silent   bool // the DNP halves do not answer
	barriers map[jobs.Key]*meeting
	posted   chan jobs.Mail // every Arrive that came
}

type meeting struct {
	arrived []bool
	waits   map[fault.NodeID]bool
	gone    []int
}

func newTorus() *torus {
	return &torus{servers: map[fault.NodeID]*local.Server{}, links: 6, barriers: map[jobs.Key]*meeting{}, posted: make(chan jobs.Mail, 1<<16)}
}

// post handles a mail from a node's host half.
func (w *torus) post(from fault.NodeID, m jobs.Mail) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.silent {
		return
	}
	own := w.servers[from]
	switch m.Kind {
	case jobs.Raise:
		answer := jobs.Mail{Kind: jobs.Taken, Request: m.Request, Result: jobs.OK, Links: w.links}
		if w.links == 0 {
			answer.Result = jobs.NoLinks
		} else {
			e := new(lofamov1.JobEureka)
			if err := proto.Unmarshal(m.Envelope, e); err != nil {
				panic(err)
			}
			for _, s := range w.servers { // the raising node's own too, as dnpcore does
				go s.Deliver(e)
				go s.Deliver(e) // no harm is done by one that comes twice
			}
		}
		go own.Heard(answer)
	case jobs.Arrive:
		w.posted <- m
		w.arrive(from, m)
	case jobs.Leave:
		if b := w.barriers[m.Key]; b != nil {
			delete(b.waits, from)
		}
	default: // the half's own
	}
}

func (w *torus) arrive(from fault.NodeID, m jobs.Mail) {
	b := w.barriers[m.Key]
	if b == nil {
		b = &meeting{arrived: make([]bool, m.Members), waits: map[fault.NodeID]bool{}}
		w.barriers[m.Key] = b
	}
	b.waits[from] = true
	if m.Flag {
		b.arrived[m.Rank] = true
	}
	if m.Gone != nil {
		b.gone = m.Gone
	}
	said := jobs.Mail{Kind: jobs.Status, Key: m.Key, Result: jobs.OK, Links: w.links, Arrived: slices.Clone(b.arrived), Gone: b.gone,
		Flag: !slices.Contains(b.arrived, false)}
	for id := range b.waits {
		go w.servers[id].Heard(said)
	}
}

// set runs f while no other operation runs.
func (w *torus) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

var errNoDNP = errors.New("other half has no mailbox")

func (h *half) Self() (fault.NodeID, fault.Epoch) { return h.node, 3 }
func (h *half) SinceBoot() time.Duration          { return time.Hour }

func (h *half) Sign(m *lofamov1.JobEureka) ([]byte, error) { return proto.Marshal(m) }

func (h *half) Post(m jobs.Mail) error {
	if h.torus == nil {
		return errNoDNP
	}
	got, err := jobs.DecodeMail(m.Append(nil))
	if err != nil {
		panic(err)
	}
	h.torus.post(h.node, got)
	return nil
}

// cluster is some nodes, each with a socket that everybody may open.
type cluster struct {
	*torus
	halves  map[fault.NodeID]*half
	sockets map[fault.NodeID]string
}

func newCluster(t *testing.T, c config.JobsConfig, nodes ...fault.NodeID) *cluster {
	t.Helper()
	out := &cluster{newTorus(), map[fault.NodeID]*half{}, map[fault.NodeID]string{}}
	for _, id := range nodes {
		// Not t.TempDir: other users could not enter it.
		dir, err := os.MkdirTemp("", "lofamo-local-")
		if err == nil {
			err = os.Chmod(dir, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		h := newHalf(id)
		h.torus = out.torus
		s, path := serveHalf(t, h, dir, 0o777, c)
		out.set(func() { out.servers[id] = s })
		out.halves[id], out.sockets[id] = h, path
	}
	return out
}
