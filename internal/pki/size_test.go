package pki

import (
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestCertificatesOfLongestNamesFit: every certificate of a half fits MaxCertificate, of every authority, for every lifetime.
func TestCertificatesOfLongestNamesFit(t *testing.T) {
	cluster, node, longest := strings.Repeat("c", 63), fault.NodeID(strings.Repeat("n", 63)), 0
	first, err := NewCA(cluster)
	if err != nil {
		t.Fatal(err)
	}
	next, err := first.Next(KeyECDSA)
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := NewIssuer(cluster)
	if err != nil {
		t.Fatal(err)
	}
	pub, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, half := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		id := NodeIdentity(cluster, node, half)
		issued, err := issuer.Issue(time.Now(), id, pub, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		certs := [][]byte{issued}
		for _, ca := range []*CA{first, next} {
			for _, lifetime := range []time.Duration{time.Minute, leafValidity} {
				ca.SetNodeLifetime(lifetime)
				signer, err := ca.IssueSigner(id)
				if err != nil {
					t.Fatal(err)
				}
				renewed, err := issuer.Renew(time.Now(), Presented{Identity: id, NotBefore: signer.Begins(), Descends: signer.Begins()}, pub, lifetime)
				if err != nil {
					t.Fatal(err)
				}
				certs = append(certs, signer.Cert(), renewed)
			}
		}
		for _, der := range certs {
			longest = max(longest, len(der))
		}
	}
	if most := servicenet.MaxCertificate; longest > most || longest < most-25 {
		t.Errorf("the longest certificate has %d bytes: want %d at most, and little less", longest, most)
	}
}

// TestRelayedReportsOfLongNamesArrive: the reports of a DNP half, which its host half relays, arrive also when the names of the cluster
// and the node are the longest.
func TestRelayedReportsOfLongNamesArrive(t *testing.T) {
	for _, c := range []struct {
		cluster string
		node    fault.NodeID
	}{
		{"c1", "n0-0-0"},
		{strings.Repeat("c", 41), fault.NodeID(strings.Repeat("n", 63))},
		{strings.Repeat("c", 63), fault.NodeID(strings.Repeat("n", 63))},
	} {
		ca, err := NewCA(c.cluster)
		if err != nil {
			t.Fatal(err)
		}
		host, err := ca.IssueSigner(NodeIdentity(c.cluster, c.node, fault.HalfHost))
		if err != nil {
			t.Fatal(err)
		}
		dnp, err := ca.IssueSigner(NodeIdentity(c.cluster, c.node, fault.HalfDNP))
		if err != nil {
			t.Fatal(err)
		}
		origin := fault.Origin{Node: c.node, Half: fault.HalfDNP}
		cfg := servicenet.DefaultOutboxConfig(fault.PathTorus)
		cfg.Certificate = len(dnp.Cert())
		o, err := servicenet.NewOutbox(origin, 5, cfg)
		if err != nil {
			t.Fatal(err)
		}
		hops := []fault.Hop{{Node: c.node, Half: fault.HalfDNP}, {Node: c.node, Half: fault.HalfHost, Held: time.Millisecond}}
		var failure error
		failed, digests := 0, 0
		now := time.Unix(1_000_000, 0)
		var carry func(out servicenet.Output)
		carry = func(out servicenet.Output) {
			for _, m := range out.Send {
				b, err := servicenet.SealReports(m.Reports, m.Status, dnp, servicenet.SealOptions{Checksum: m.Checksum})
				if err == nil {
					_, err = servicenet.SealRelayed(b, hops, host)
				}
				if err != nil {
					failure, failed = err, failed+1 // as in internal/agent/host: logged, not sent
					continue
				}
				for _, r := range m.Reports { // a perfect network, and a supervisor that commits at once
					status := lofamov1.Ack_COMMITTED
					if r.Digest {
						status, digests = lofamov1.Ack_RECEIVED, digests+1
					}
					carry(o.Step(now, servicenet.Acked{Ack: servicenet.NewAcks(status, r.ID)[0], Supervisor: "s1", Path: fault.PathTorus}))
				}
			}
		}
		carry(o.Step(now, servicenet.Supervisors{Targets: []string{"s1", "s2", "s3"}, Leader: "s1"}))
		links := func(detail string) (out []fault.Observation) { // two links break at one time
			for _, d := range []grid.Direction{grid.XPlus, grid.XMinus} {
				out = append(out, fault.Observation{Node: c.node, Component: fault.Link(d), State: fault.Failed, Kind: fault.KindSilence,
					Detail: detail})
			}
			return out
		}
		_, out := o.Add(now, fault.Report{Observations: links("nothing heard, and the neighbour's kernel refuses frames")})
		carry(out)
		neighbour := fault.NodeID(strings.Repeat("m", len(c.node)))
		_, out = o.Add(now, fault.Report{Uptime: time.Hour, Observations: []fault.Observation{{Node: neighbour,
			Component: fault.ComponentDNPCore, State: fault.Failed, Kind: fault.KindSilence, Detail: "nothing heard"}}})
		if carry(out); out.TooLong > 0 {
			t.Errorf("cluster of %d bytes, node of %d: the report on a neighbour was left out", len(c.cluster), len(c.node))
		}
		made := 0
		for end := now.Add(10 * time.Minute); now.Before(end); now = now.Add(50 * time.Millisecond) {
			if carry(o.Step(now, servicenet.Tick{})); now.UnixMilli()%500 == 0 { // and a digest of a half with these two faults
				made++
				obs := append(links("nothing heard"), fault.Observation{Node: c.node, Component: fault.ComponentDNPCore, State: fault.Normal,
					Kind: fault.KindSelf})
				_, out := o.Add(now, fault.Report{Digest: true, Observations: obs})
				carry(out)
			}
		}
		o.Step(now, servicenet.Tick{})
		if st := o.Stats(); st.Pending > 0 {
			t.Errorf("cluster of %d bytes, node of %d, certificates of %d and %d: after 10 minutes %d reports or digests wait, %d of %d "+
				"digests have arrived; %d envelopes were not relayed, the last: %v", len(c.cluster), len(c.node), len(host.Cert()),
				len(dnp.Cert()), st.Pending, digests, made, failed, failure)
		}
	}
}
