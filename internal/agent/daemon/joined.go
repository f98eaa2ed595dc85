package daemon

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/pki"
)

// joinedNode is the stored form of an enrolment.
type joinedNode struct {
	Cluster     string                  `json:"cluster"`
	Node        fault.NodeID            `json:"node"`
	Preset      string                  `json:"preset"`
	Periods     *config.PeriodsOverride `json:"periods,omitempty"`
	Supervisors []config.SupervisorAddr `json:"supervisors"`
	Gossip      []string                `json:"gossip,omitempty"`
	Keys        bool                    `json:"gossipKeys,omitempty"`
	Address     netip.Addr              `json:"address"`
	At          time.Time               `json:"at"`
}

// stored reads the enrolment, and returns why it cannot be used.
func (j *joiner) stored() (joinedNode, error) {
	b, err := durable.Read(j.file(joinAnswer), maxJoinFile)
	if err != nil {
		return joinedNode{}, err
	}
	have, err := decodeJoined(b)
	if err != nil {
		return have, fmt.Errorf("%s: %w", j.file(joinAnswer), err)
	}
	if have.Node != j.cfg.Node {
		return have, fmt.Errorf("%s: is of node %s: want %s", j.file(joinAnswer), have.Node, j.cfg.Node)
	}
	if ca := j.cfg.Join.CA; ca != "" {
		if same, err := pki.ShareAuthority(ca, j.file("ca.pem")); err != nil || !same {
			return have, errors.Join(fmt.Errorf("%s: is from another authority than those of join.ca, %s", j.file("ca.pem"), ca), err)
		}
	}
	c := j.joined(have)
	verifier, err := pki.LoadVerifier(c.TLS.CA, c.Cluster)
	if err != nil {
		return have, err
	}
	a := j.cfg.With(c)
	var own []*pki.Signer
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		signer, err := half.LoadSigner(a, h)
		if err != nil {
			return have, err
		}
		half.NewRenewer(j.log, fault.Origin{Node: have.Node, Half: h}, a.StateDir, signer, verifier).Keep()
		if _, err := verifier.Check(signer.Cert()); err != nil {
			return have, err
		}
		own = append(own, signer)
	}
	j.own, j.at = own, netip.Addr{}
	if err := j.has(have.Address); err != nil {
		return have, fmt.Errorf("%w: %w", errAddress, err)
	}
	j.at = have.Address
	return have, nil
}

// decodeJoined reads the stored form of an enrolment.
func decodeJoined(b []byte) (n joinedNode, err error) {
	err = json.Unmarshal(b, &n)
	return n, err
}

// decodePeriods reads the periods that a supervisor names. Their ranges are checked with the whole configuration.
func decodePeriods(text string) (*config.PeriodsOverride, error) {
	out := new(config.PeriodsOverride)
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(out); err != nil {
		return nil, fmt.Errorf("periods: %w", err)
	}
	return out, nil
}

// joined returns an enrolment in terms of the configuration.
func (j *joiner) joined(n joinedNode) config.Joined {
	out := config.Joined{
		Cluster: n.Cluster, Node: n.Node, Preset: n.Preset, Periods: n.Periods, Supervisors: n.Supervisors, Gossip: n.Gossip, Address: n.Address,
		TLS: config.AgentTLS{CA: j.file("ca.pem"), HostCert: j.file("host.pem"), HostKey: j.file("host.key"), DNPCert: j.file("dnp.pem"),
			DNPKey: j.file("dnp.key")},
	}
	if n.Keys {
		out.GossipKeys = j.file("gossip.key")
	}
	return out
}

// keeps reports whether authorities accept the node's own certificates.
func (j *joiner) keeps(ca []byte, cluster string) bool {
	verifier, err := pki.NewVerifier(ca, cluster)
	return err == nil && len(j.own) > 0 && !slices.ContainsFunc(j.own, func(s *pki.Signer) bool {
		_, err := verifier.Check(s.Cert())
		return err != nil
	})
}

// accept checks an answer and stores it; the file with the answer last. Until then the keys of the request stay, so that it can
// be repeated.
func (j *joiner) accept(resp *lofamov1.EnrolResponse, n *joinedNode, keys map[pki.Identity]ed25519.PrivateKey, pin *[32]byte) error {
	if resp.GetCluster() != n.Cluster || resp.GetNode() != string(n.Node) {
		return fmt.Errorf("it is for node %.64q of cluster %.64q: want %s of %s", resp.GetNode(), resp.GetCluster(), n.Node, n.Cluster)
	}
	host, dnp := pki.NodeIdentity(n.Cluster, n.Node, fault.HalfHost), pki.NodeIdentity(n.Cluster, n.Node, fault.HalfDNP)
	settings := len(resp.GetHostCertificate())+len(resp.GetDnpCertificate()) == 0 // and no certificates
	if settings && !j.keeps(resp.GetCa(), n.Cluster) {
		return errors.New("no certificates, and its authorities do not accept those of the node")
	}
	if !settings {
		if err := pki.CheckEnrolled(resp.GetCa(), pin, time.Now(), map[pki.Identity][]byte{host: resp.GetHostCertificate(),
			dnp: resp.GetDnpCertificate()}, keys); err != nil {
			return err
		}
	}
	if c := j.cfg.Join.CA; c != "" {
		if shared, err := pki.SharesAuthority(c, resp.GetCa()); err != nil || !shared {
			return errors.Join(fmt.Errorf("join.ca: %s has none of the cluster's authorities any more: add the new one", c), err)
		}
	}
	n.Preset, n.Gossip, n.Keys = resp.GetPreset(), resp.GetGossip(), len(resp.GetGossipKeys()) > 0
	for _, s := range resp.GetSupervisors() {
		if len(s.GetReport()) == 0 {
			return fmt.Errorf("supervisor %.64q: no report address", s.GetId())
		}
		n.Supervisors = append(n.Supervisors, config.SupervisorAddr{ID: s.GetId(), Report: s.GetReport()[0], Alternates: s.GetReport()[1:]})
	}
	if text := resp.GetPeriods(); text != "" {
		var err error
		if n.Periods, err = decodePeriods(text); err != nil {
			return err
		}
	}
	complete := j.joined(*n)
	if err := j.cfg.With(complete).Validate(); err != nil {
		return err
	}
	if n.Keys {
		if err := pki.SaveGossipKeys(complete.GossipKeys, resp.GetGossipKeys()); err != nil {
			return err
		}
	}
	if err := durable.WriteFile(complete.TLS.CA, resp.GetCa(), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", complete.TLS.CA, err)
	}
	if !settings {
		if err := errors.Join(pki.WriteHalf(complete.TLS.HostCert, complete.TLS.HostKey, resp.GetHostCertificate(), keys[host]),
			pki.WriteHalf(complete.TLS.DNPCert, complete.TLS.DNPKey, resp.GetDnpCertificate(), keys[dnp])); err != nil {
			return err
		}
	}
	b, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("encode the enrolment: %w", err)
	}
	if err := durable.Whole(j.file(joinAnswer), b); err != nil {
		return err
	}
	return errors.Join(os.Remove(complete.TLS.HostKey+pendingKey), os.Remove(complete.TLS.DNPKey+pendingKey))
}
