package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lofamo/lofamo/internal/notify"
)

// A policy of responses has one key while it is in force, and one for each former version. A target of notifications has one key. Every
// change renews the head, which guards changes of any two policies or targets against each other: policies in force are validated together
// and with the targets that they name.
const (
	keyPolicies       = Prefix + "policies/"
	keyPolicyHead     = keyPolicies + "head"
	keyPolicyCurrent  = keyPolicies + "current/"
	keyPolicyFormer   = keyPolicies + "former/"
	keyPolicyTarget   = keyPolicies + "target/"
	policyVersionForm = "%020d"
)

// Bounds of the kept policies.
const (
	// MaxFormer is the number of former versions kept per policy.
	MaxFormer = 20
	// MaxFormerAll is the number of former versions kept in total, including those of withdrawn policies.
	MaxFormerAll = 2000
	// MaxPolicyJSON bounds one document, in bytes.
	MaxPolicyJSON = 64 << 10
)

// StoredPolicy is one version of a policy.
type StoredPolicy struct {
	Name    string
	Version uint64 // from 1, incremented with every change; 0: unreadable
	JSON    []byte // the whole document; empty for a withdrawal
	By      string // subject that put it in force, "ROLE/NAME"
	At      time.Time
	Deleted bool // former versions only: this one was a withdrawal
}

// storedPolicy is the stored form of a policy.
type storedPolicy struct {
	Version  uint64          `json:"version"`
	Document json.RawMessage `json:"document,omitempty"`
	By       string          `json:"by"`
	At       time.Time       `json:"at"`
	Deleted  bool            `json:"deleted,omitempty"`
}

func (p StoredPolicy) put(key string) (KV, error) {
	value, err := json.Marshal(storedPolicy{p.Version, p.JSON, p.By, p.At.UTC(), p.Deleted})
	if err != nil {
		return KV{}, fmt.Errorf("encode policy %s, version %d: %w", p.Name, p.Version, err)
	}
	return KV{key, value}, nil
}

func decodePolicy(name string, kv *mvccpb.KeyValue) (StoredPolicy, error) {
	var v storedPolicy
	if err := json.Unmarshal(kv.Value, &v); err != nil {
		return StoredPolicy{}, fmt.Errorf("read %s: %w", kv.Key, err)
	}
	return StoredPolicy{name, v.Version, v.Document, v.By, v.At, v.Deleted}, nil
}

// decodePolicies decodes the policies in force. An unreadable value becomes the JSON of its policy, which is then no
// valid document. The others still count.
func decodePolicies(kvs []*mvccpb.KeyValue) []StoredPolicy {
	var out []StoredPolicy
	for _, kv := range kvs {
		name := strings.TrimPrefix(string(kv.Key), keyPolicyCurrent)
		p, err := decodePolicy(name, kv)
		if err != nil {
			p = StoredPolicy{Name: name, JSON: kv.Value}
		}
		out = append(out, p)
	}
	return out
}

func formerKey(name string, version uint64) string {
	return keyPolicyFormer + name + "/" + fmt.Sprintf(policyVersionForm, version)
}

// StoredTarget is a target of notifications that an operator has added.
type StoredTarget struct {
	notify.Target

	By       string // subject that added it, "ROLE/NAME"
	At       time.Time
	Revision uint64 // of its last change
	Removed  bool   // in a write only: it is to be removed
}

// storedTarget is the stored form of a target.
type storedTarget struct {
	URL    string        `json:"url"`
	Format notify.Format `json:"format"`
	Secret string        `json:"secret,omitempty"`
	By     string        `json:"by"`
	At     time.Time     `json:"at"`
}

// decodeTargets decodes targets. It leaves out unreadable ones: policies that name them can send nothing.
func decodeTargets(kvs []*mvccpb.KeyValue) []StoredTarget {
	var out []StoredTarget
	for _, kv := range kvs {
		var v storedTarget
		if json.Unmarshal(kv.Value, &v) == nil {
			name := strings.TrimPrefix(string(kv.Key), keyPolicyTarget)
			out = append(out, StoredTarget{Target: notify.Target{Name: name, URL: v.URL, Format: v.Format, Secret: v.Secret}, By: v.By, At: v.At,
				Revision: uint64(kv.ModRevision)})
		}
	}
	return out
}

// Policies returns the policies in force, the targets and their revision, from the replica's own copy. See decodePolicies for unreadable
// ones. The set is for reading: a change begins with PolicySet.
func (s *Etcd) Policies(ctx context.Context) (PolicySet, error) {
	resp, err := s.c.Txn(ctx).Then(clientv3.OpGet(keyPolicyCurrent, clientv3.WithPrefix(), clientv3.WithSerializable()),
		clientv3.OpGet(keyPolicyTarget, clientv3.WithPrefix(), clientv3.WithSerializable())).Commit()
	if err != nil {
		return PolicySet{}, fmt.Errorf("read policies from the store: %w", err)
	}
	return PolicySet{Revision: uint64(resp.Header.Revision), Policies: decodePolicies(resp.Responses[0].GetResponseRange().Kvs),
		Targets: decodeTargets(resp.Responses[1].GetResponseRange().Kvs)}, nil
}

// WatchPolicies calls each with the policies in force and the targets in the replica's own copy, at first and after every change. It
// returns when the context ends or the watch breaks.
func (s *Etcd) WatchPolicies(ctx context.Context, each func(PolicySet)) error {
	return s.follow(ctx, "policies", keyPolicyHead, nil, func() (uint64, error) {
		set, err := s.Policies(ctx)
		if err == nil {
			each(set)
		}
		return set.Revision, err
	})
}

// PolicyHistory returns the kept former versions of a policy, newest first, from the replica's own copy.
func (s *Etcd) PolicyHistory(ctx context.Context, name string) ([]StoredPolicy, error) {
	resp, err := s.c.Get(ctx, keyPolicyFormer+name+"/", clientv3.WithPrefix(), clientv3.WithSerializable(),
		clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend))
	if err != nil {
		return nil, fmt.Errorf("read the former versions of policy %s from the store: %w", name, err)
	}
	var out []StoredPolicy
	for _, kv := range resp.Kvs {
		p, err := decodePolicy(name, kv)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// PolicySet is the state of all policies on which a change is based.
type PolicySet struct {
	Policies []StoredPolicy // in force, by name
	Targets  []StoredTarget // by name
	Revision uint64         // of the store

	head   uint64   // revision of the head
	former []string // keys, in order of writing
}

// PolicySet reads the policies with a quorum.
func (s *Etcd) PolicySet(ctx context.Context) (PolicySet, error) {
	resp, err := s.c.Txn(ctx).Then(
		clientv3.OpGet(keyPolicyHead, clientv3.WithKeysOnly()), clientv3.OpGet(keyPolicyCurrent, clientv3.WithPrefix()),
		clientv3.OpGet(keyPolicyFormer, clientv3.WithPrefix(), clientv3.WithKeysOnly(),
			clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortAscend)),
		clientv3.OpGet(keyPolicyTarget, clientv3.WithPrefix()),
	).Commit()
	if err != nil {
		return PolicySet{}, fmt.Errorf("read policies from the store: %w", err)
	}
	set := PolicySet{Revision: uint64(resp.Header.Revision)}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		set.head = uint64(kv.ModRevision)
	}
	for _, kv := range resp.Responses[2].GetResponseRange().Kvs {
		set.former = append(set.former, string(kv.Key))
	}
	set.Policies = decodePolicies(resp.Responses[1].GetResponseRange().Kvs)
	set.Targets = decodeTargets(resp.Responses[3].GetResponseRange().Kvs)
	return set, nil
}

// Of returns a policy in force.
func (p PolicySet) Of(name string) (StoredPolicy, bool) {
	i, ok := slices.BinarySearchFunc(p.Policies, name, func(s StoredPolicy, name string) int { return strings.Compare(s.Name, name) })
	if !ok {
		return StoredPolicy{}, false
	}
	return p.Policies[i], true
}

// Target returns a target.
func (p PolicySet) Target(name string) (StoredTarget, bool) {
	if i := slices.IndexFunc(p.Targets, func(t StoredTarget) bool { return t.Name == name }); i >= 0 {
		return p.Targets[i], true
	}
	return StoredTarget{}, false
}

// Receivers returns the targets without the marks of the store.
func (p PolicySet) Receivers() []notify.Target {
	out := make([]notify.Target, len(p.Targets))
	for i, t := range p.Targets {
		out[i] = t.Target
	}
	return out
}

// Next returns the version of a policy after its next change. A withdrawn policy continues its numbers while they are
// kept; an unreadable one had the number after the kept ones.
func (p PolicySet) Next(name string) uint64 {
	now, is := p.Of(name)
	if now.Version > 0 {
		return now.Version + 1
	}
	next := uint64(1)
	for _, key := range p.formerOf(name) {
		if v, err := strconv.ParseUint(key[strings.LastIndexByte(key, '/')+1:], 10, 64); err == nil {
			next = max(next, v+1)
		}
	}
	if is {
		next++
	}
	return next
}

// formerOf returns the keys of a policy's former versions, oldest first.
func (p PolicySet) formerOf(name string) []string {
	var out []string
	for _, key := range p.former {
		if strings.HasPrefix(key, keyPolicyFormer+name+"/") {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// Write returns the write that puts policies in force, or with Deleted withdraws them; each name once. It assigns the
// versions. It also stores targets, or with Removed removes them. The write fails with ErrConflict if any policy or target has changed
// since the set was read.
func (p PolicySet) Write(changes []StoredPolicy, targets ...StoredTarget) (Write, error) {
	w := Write{Guards: []Guard{{keyPolicyHead, p.head}}}
	if err := w.targets(targets); err != nil {
		return Write{}, err
	}
	dropped := map[string]bool{}
	drop := func(key string) {
		if !dropped[key] {
			dropped[key] = true
			w.Deletes = append(w.Deletes, key)
		}
	}
	kept := len(p.former)
	for _, c := range changes {
		c.Version = p.Next(c.Name)
		was, before := p.Of(c.Name)
		former := p.formerOf(c.Name)
		if was.Version > 0 { // unreadable versions are not kept
			kv, err := was.put(formerKey(c.Name, was.Version))
			if err != nil {
				return Write{}, err
			}
			w.Puts = append(w.Puts, kv)
			kept++
			former = append(former, kv.Key)
		}
		key := keyPolicyCurrent + c.Name
		if c.Deleted {
			if !before {
				return Write{}, fmt.Errorf("policy %s: there is none to withdraw", c.Name)
			}
			c.JSON = nil
			w.Deletes = append(w.Deletes, key)
			key = formerKey(c.Name, c.Version)
			kept++
			former = append(former, key)
		} else if n := len(c.JSON); n == 0 || n > MaxPolicyJSON {
			return Write{}, fmt.Errorf("policy %s: given a document of %d bytes: want 1 to %d", c.Name, n, MaxPolicyJSON)
		}
		kv, err := c.put(key)
		if err != nil {
			return Write{}, err
		}
		w.Puts = append(w.Puts, kv)
		for _, old := range former[:max(0, len(former)-MaxFormer)] {
			drop(old)
			kept--
		}
	}
	for _, key := range p.former {
		if kept <= MaxFormerAll {
			break
		}
		if !dropped[key] {
			drop(key)
			kept--
		}
	}
	if len(changes)+len(targets) == 0 {
		return Write{}, errors.New("policies: given no change: want at least one")
	}
	// The write itself is the signal. The value only makes two changes of one revision conflict.
	w.Puts = append(w.Puts, KV{keyPolicyHead, []byte(strconv.FormatUint(p.head, 10))})
	return w, nil
}

// targets adds the changes of targets to a write.
func (w *Write) targets(changes []StoredTarget) error {
	for _, t := range changes {
		key := keyPolicyTarget + t.Name
		if t.Removed {
			w.Deletes = append(w.Deletes, key)
			continue
		}
		value, err := json.Marshal(storedTarget{t.URL, t.Format, t.Secret, t.By, t.At.UTC()})
		if err != nil {
			return fmt.Errorf("encode target %s: %w", t.Name, err)
		}
		w.Puts = append(w.Puts, KV{key, value})
	}
	return nil
}
