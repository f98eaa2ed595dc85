package e2e

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// stranger is a kind of packet that every receiver must refuse.
type stranger struct {
	name   string
	packet []byte
	// The classes under which a supervisor and a host half count it; empty: none of refusals.
	supervisor, agent string
}

// thief signs with a certificate that is not its own.
type thief struct {
	cert []byte
	key  ed25519.PrivateKey
}

func (s thief) Cert() []byte               { return s.cert }
func (s thief) Sign(payload []byte) []byte { return ed25519.Sign(s.key, payload) }

// raw seals messages that Seal would reject: any payload, without a checksum.
func raw(t *testing.T, payload []byte, s servicenet.Signer) []byte {
	t.Helper()
	b, err := proto.Marshal(&lofamov1.Envelope{
		Payload: payload, Certificate: s.Cert(), Signature: s.Sign(payload), ChecksumAlgorithm: lofamov1.Checksum_CHECKSUM_NONE,
		Checksum: math.MaxUint64,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// signers are those of a test that has all of a cluster's keys, and some that are not.
type signers struct {
	host0, host1, foreign *pki.Signer
	thief                 thief
}

func newSigners(t *testing.T, c *cluster.Cluster) signers {
	t.Helper()
	load := func(cert, key string) *pki.Signer {
		s, err := pki.LoadSigner(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	ca, err := pki.NewCA(c.Info().Cluster) // of the same name
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "c.pem"), filepath.Join(dir, "c.key")
	if err := ca.IssueTo(cert, key, pki.NodeIdentity(c.Info().Cluster, "n0-0-0", fault.HalfHost), nil, nil); err != nil {
		t.Fatal(err)
	}
	_, stolen, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s := signers{
		host0: load(c.PKI("n0-0-0-host.pem"), c.PKI("n0-0-0-host.key")), host1: load(c.PKI("n1-0-0-host.pem"), c.PKI("n1-0-0-host.key")),
		foreign: load(cert, key),
	}
	s.thief = thief{s.host0.Cert(), stolen}
	return s
}

// strangers makes one packet of each kind. Only the last, a copy of a packet accepted long ago, has a valid signature.
func strangers(t *testing.T, s signers) []stranger {
	t.Helper()
	noise := make([]byte, 1400)
	_, _ = rand.Read(noise)
	noise[0] = 7 // no such tag
	old := []fault.Report{{
		ID: fault.ReportID{Origin: fault.Origin{Node: "n0-0-0", Half: fault.HalfHost}, Epoch: 1, Seq: 1}, Digest: true,
		Observations: []fault.Observation{{Node: "n0-0-0", Component: fault.ComponentMemory, State: fault.Failed, Kind: fault.KindSelf}},
	}}
	seal := func(sg servicenet.Signer, o servicenet.SealOptions) []byte {
		b, err := servicenet.SealReports(old, nil, sg, o)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	good := seal(s.host0, servicenet.SealOptions{})
	flipped := append([]byte(nil), good...)
	flipped[len(flipped)/2] ^= 4
	ack, err := servicenet.Seal(&lofamov1.Message{Acks: servicenet.NewAcks(lofamov1.Ack_COMMITTED, old[0].ID)}, s.host0)
	if err != nil {
		t.Fatal(err)
	}
	long := servicenet.EncodeReports(old, nil)
	long.Reports[0].Observations[0].Detail = strings.Repeat("x", fault.MaxDetail+1)
	tooLong, err := proto.Marshal(&lofamov1.Message{Body: &lofamov1.Message_Reports{Reports: long}})
	if err != nil {
		t.Fatal(err)
	}
	unknown := protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), []byte("of a later version"))
	return []stranger{
		{"nothing", nil, "malformed", "malformed"},
		{"noise", noise, "malformed", "malformed"},
		{"one byte too long", make([]byte, servicenet.MaxDatagram+1), "", ""},
		{"as long as can be", make([]byte, 65000), "", ""},
		{"cut off", good[:len(good)-5], "malformed", "malformed"},
		{"a flipped bit", flipped, "checksum", "checksum"},
		{"of another authority", seal(s.foreign, servicenet.SealOptions{}), "signature", "signature"},
		{"a stolen certificate", seal(s.thief, servicenet.SealOptions{}), "signature", "signature"},
		{"in another's name", seal(s.host1, servicenet.SealOptions{}), "origin", ""},
		{"a node that acknowledges", ack, "role", "role"},
		{"an unknown body", raw(t, unknown, s.host0), "unknown-message", "unknown-message"},
		{"a field out of range", raw(t, tooLong, s.host0), "field", "field"},
		{"of no session", seal(s.host0, servicenet.SealOptions{Session: servicenet.NewSession(99, [32]byte{1})}), "session", "session"},
		{"a replay", good, "", ""},
	}
}

// resident is the memory of a process, in bytes.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	var kib int64
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			_, _ = fmt.Sscan(rest, &kib)
		}
	}
	return kib << 10
}

// blast sends n packets, of each kind in turn to each target, some in a millisecond, so that most are
// looked at and not only dropped by the kernel.
func blast(n int, packets []stranger, targets []string) error {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	defer conn.Close()
	to := make([]netip.AddrPort, len(targets))
	for i, text := range targets {
		to[i] = netip.MustParseAddrPort(text)
	}
	const burst = 20
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := range n {
		if i%burst == 0 {
			<-tick.C
		}
		if _, err := conn.WriteToUDPAddrPort(packets[i/len(to)%len(packets)].packet, to[i%len(to)]); err != nil {
			return err
		}
	}
	return nil
}

// maxGrowth is the memory that two hundred thousand packets may add to a process: less than 170 bytes for each,
// including the runtime's own variation.
const maxGrowth = 32 << 20

// TestStrangersAreCounted sends every kind of bad packet to the ports of a supervisor and of a node, also while the
// node has something to report (row 16 of the fault catalogue): the packets are refused and counted by class, memory
// does not grow, and the service continues.
func TestStrangersAreCounted(t *testing.T) {
	l := clusterOf(t, "2x1x1", cluster.Options{Supervisors: 1, Periods: patient()})
	http := l.Cluster.Info().Nodes[0].HTTP
	try(t, l, "strangers", func(t trial) {
		cfg, err := config.LoadAgent(filepath.Join(t.Cluster.Dir(), "nodes", "n0-0-0", "agent.yaml"), nil)
		if err != nil {
			t.Fatal(err)
		}
		sup := t.Cluster.Info().Supervisors[0]
		targets := []string{sup.Report, cfg.Service.Listen}
		for _, link := range cfg.Links {
			targets = append(targets, link.Local)
		}
		pids := t.pids(sup.PID, "n0-0-0")
		packets := strangers(t.T, newSigners(t.T, t.Cluster))
		if err := blast(20000, packets, targets); err != nil { // so that every buffer has its size
			t.Fatal(err)
		}
		before := map[string]int64{}
		for who, pid := range pids {
			before[who] = resident(t.T, pid)
		}
		supBefore, agentBefore := scrape(t.T, sup.HTTP), scrape(t.T, http)
		done := make(chan error, 1)
		go func() { done <- blast(200000, packets, targets) }()
		t.inject("0,0,0", sensor("temperature", 110))
		t.becomes("n0-0-0", "temperature", failed)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for who, pid := range pids {
			grown := resident(t.T, pid) - before[who]
			t.Logf("%s: %d MiB, grown by %d KiB", who, before[who]>>20, grown>>10)
			if grown > maxGrowth {
				t.Errorf("the memory of %s grew by %d KiB", who, grown>>10)
			}
		}
		t.counted(packets, sup.HTTP, http, supBefore, agentBefore)
		t.inject("0,0,0", sensor("temperature", 45))
		t.becomes("n0-0-0", "temperature", normal)
		t.neverFailed()
		for _, s := range t.Since(t.mark) {
			own := s.GetNode() == "n0-0-0" && (s.GetComponent() == "temperature" || s.GetComponent() == "node")
			// On a busy machine the kernel drops packets without room, and the node reports that: its supervisor's
			// answers are missing, or the probes that its host half sends itself through the same socket.
			probes := s.GetComponent() == "host" && (s.GetFrom() == sick || strings.Contains(s.GetReason(), "self-test: direct rail"))
			lossy := s.GetTo() != failed && (s.GetComponent() == "service-network" || s.GetComponent() == "node" || probes)
			begins := s.GetFrom() == unknown && s.GetTo() == normal         // a check that runs for the first time
			starved := s.GetKind() == lofamov1.EventKind_STARVATION_CHANGED // caused by other programs on a busy machine
			if !own && !lossy && !begins && !starved {
				t.Errorf("the strangers did something: %s", s)
			}
		}
	})
}

// pids are those of a supervisor and of a node's halves.
func (t trial) pids(supervisor int, node string) map[string]int {
	t.Helper()
	n, err := t.Cluster.Node(node)
	if err != nil {
		t.Fatal(err)
	}
	st, err := t.Cluster.Status(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]int{"the supervisor": supervisor, "the host half": st.Host.PID, "the DNP half": st.DNP.PID}
}

// counted checks that every class has grown at both ends.
func (t trial) counted(packets []stranger, sup, agent string, supBefore, agentBefore metrics) {
	t.Helper()
	supAfter, agentAfter := scrape(t.T, sup), scrape(t.T, agent)
	for _, p := range packets {
		damage := p.supervisor == "malformed" || p.supervisor == "checksum"
		if p.supervisor != "" && !damage && supAfter.refused(p.supervisor) <= supBefore.refused(p.supervisor) {
			t.Errorf("%s: the supervisor has counted no %s", p.name, p.supervisor)
		}
		if p.agent != "" && agentAfter.refusedByAgent(p.agent) <= agentBefore.refusedByAgent(p.agent) {
			t.Errorf("%s: the host half has counted no %s", p.name, p.agent)
		}
	}
	for _, c := range []struct {
		name, label   string
		before, after metrics
	}{
		{"lofamo_supervisor_damaged_total", "", supBefore, supAfter},
		{"lofamo_supervisor_oversized_total", "", supBefore, supAfter},
		{"lofamo_inbox_verdicts_total", `verdict="STALE_EPOCH"`, supBefore, supAfter}, // the replay: no half lives in epoch 1
		{"lofamo_agent_damaged_total", "", agentBefore, agentAfter},
		{"lofamo_agent_oversized_total", "", agentBefore, agentAfter},
	} {
		before, after := c.before.total(c.name, c.label), c.after.total(c.name, c.label)
		if after <= before {
			t.Errorf("%s %s is %v, and was %v before", c.name, c.label, after, before)
		}
		t.Logf("%s %s: %v", c.name, c.label, after-before)
	}
}
