package inventory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/lofamo/lofamo/internal/pki"
)

// Step is a step of a change of keys. Carry each step to every machine, and restart the halves and replicas one after
// the other, before the next step:
//
//	add     accept the new keys, use the old ones
//	use     use the new keys, still accept the old ones
//	remove  accept only the new keys
//
// So at any time, every member accepts the keys that any other member uses.
type Step string

// The steps.
const (
	StepAdd    Step = "add"
	StepUse    Step = "use"
	StepRemove Step = "remove"
)

// rotation is a change of keys in progress. It and the directory's files determine the bundles, so an interrupted step
// can be repeated.
type rotation struct {
	Step Step `json:"step,omitempty"` // empty: none is under way
	CA   bool `json:"authority,omitempty"`
	// Open: the step is missing in some bundles. Then only the same step may run, from its beginning: after another
	// step, members with an old bundle would reject the others.
	Open bool `json:"open,omitempty"`
}

func (d *Dir) rotation() (rotation, error) {
	var r rotation
	b, err := os.ReadFile(d.file(stepFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return r, fmt.Errorf("change of keys under way: %s: %w", d.file(stepFile), err)
	}
	return r, nil
}

// Rotate takes a step of a change of the gossip key, the issuer and all certificates, and with authority of the
// authority too (only with StepAdd). A step may be repeated, and must be after an interruption. Rotate returns the
// members with changed bundles: all members after an interruption.
func (d *Dir) Rotate(step Step, authority bool) ([]string, error) {
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	inv, err := d.Inventory()
	if err != nil {
		return nil, err
	}
	r, err := d.rotation()
	if err != nil {
		return nil, err
	}
	if err := r.mayTake(step); err != nil {
		return nil, err
	}
	before, err := d.sums()
	if err != nil {
		return nil, err
	}
	if r.Open { // the interrupted attempt did not report its changes
		before = nil
	}
	if r.Step == "" {
		r.CA = authority
	}
	if authority && !r.CA {
		return nil, fmt.Errorf("authority: given with step %s: want it with the step add that begins the change", step)
	}
	if err := d.checkKeys(r, step); err != nil {
		return nil, err
	}
	fresh := step == StepUse && (r.Step != step || r.Open)
	r.Step, r.Open = step, true
	if err := d.note(r); err != nil { // before the new keys: a repetition need not say again whether the authority is among them
		return nil, err
	}
	if step == StepAdd {
		if err := d.prepare(inv.Cluster, r.CA); err != nil {
			return nil, err
		}
	}
	if step == StepRemove {
		if err := d.adopt(); err != nil {
			return nil, err
		}
	}
	ca, err := d.authority()
	if err != nil {
		return nil, err
	}
	if err := d.write(inv, ca, func(string) bool { return fresh }); err != nil {
		return nil, err
	}
	if step == StepRemove {
		err = errors.Join(os.RemoveAll(d.file(nextDir)), os.Remove(d.file(stepFile)))
	} else {
		r.Open = false
		err = d.note(r)
	}
	if err != nil {
		return nil, err
	}
	return d.changed(before)
}

// ReplacesAuthority reports whether a change of keys is under way that replaces the authority too.
func (d *Dir) ReplacesAuthority() (bool, error) {
	r, err := d.rotation()
	return r.CA, err
}

// mayTake reports whether a step may follow the last one.
func (r rotation) mayTake(step Step) error {
	want, ok := map[Step][]Step{StepAdd: {"", StepAdd}, StepUse: {StepAdd, StepUse}, StepRemove: {StepUse, StepRemove}}[step]
	switch {
	case !ok:
		return fmt.Errorf("step: given %q: want add, use or remove", string(step))
	case !slices.Contains(want, r.Step) && r.Step == "":
		return fmt.Errorf("step: given %s: want add, for no change of keys is under way", step)
	case !slices.Contains(want, r.Step):
		return fmt.Errorf("step: given %s: want %s, which was the last step, or the next one", step, r.Step)
	case r.Open && r.Step != step:
		return fmt.Errorf("step: given %s: want %s, which was broken off: not all bundles have it", step, r.Step)
	}
	return nil
}

// wantWholeStep rejects other changes of the directory while a step is broken off: a certificate of the authority that step remove has
// begun to remove would be worthless.
func (d *Dir) wantWholeStep() error {
	r, err := d.rotation()
	if err == nil && r.Open {
		err = fmt.Errorf("step %s of rotate-keys was broken off: first repeat 'rotate-keys --step %s'", r.Step, r.Step)
	}
	return err
}

func (d *Dir) note(r rotation) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return replace(d.file(stepFile), b, 0o600)
}

// prepare creates the new keys, unless an interrupted attempt already did. A key without its certificate does not count:
// pairs are written key first.
func (d *Dir) prepare(cluster string, authority bool) error {
	if err := os.MkdirAll(d.file(nextDir), 0o700); err != nil {
		return err
	}
	if _, err := os.Stat(d.file(nextDir, gossipFile)); errors.Is(err, fs.ErrNotExist) {
		if err := pki.NewGossipKey(d.file(nextDir, gossipFile)); err != nil {
			return err
		}
	}
	if !exists(d.file(nextDir, issuerCert)) {
		if err := newIssuer(cluster, d.file(nextDir), pki.IssuerValidity); err != nil {
			return err
		}
	}
	if !authority || exists(d.file(nextDir, caCert)) {
		return nil
	}
	ca, err := d.authority()
	if err != nil {
		return err
	}
	if ca, err = ca.Next(d.authorityKeys()); err != nil {
		return err
	}
	return ca.Save(d.file(nextDir, caCert), d.file(nextDir, caKey))
}

// checkKeys rejects a chosen type of key that the step would ignore.
func (d *Dir) checkKeys(r rotation, step Step) error {
	switch {
	case d.keys == "":
		return nil
	case step != StepAdd:
		return fmt.Errorf("key type: given %s with step %s: want it with step add, which makes the authority", d.keys, step)
	case !r.CA:
		return fmt.Errorf("key type: given %s without a change of the authority: want both", d.keys)
	case !exists(d.file(nextDir, caCert)):
		return nil
	}
	next, _, err := pki.KeyTypeOf(d.file(nextDir, caCert))
	if err == nil && next != d.keys {
		err = fmt.Errorf("key type: given %s: want %s, the type of the next authority's key in %s", d.keys, next, d.file(nextDir, caCert))
	}
	return err
}

// adopt replaces the old keys by the new ones.
func (d *Dir) adopt() error {
	for _, name := range []string{gossipFile, caKey, caCert, issuerKey, issuerCert} {
		if err := os.Rename(d.file(nextDir, name), d.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// gossipKeys returns the bundles' keys, the one that encrypts first.
func (d *Dir) gossipKeys() ([][]byte, error) {
	keys, err := pki.LoadGossipKeys(d.file(gossipFile))
	if err != nil {
		return nil, err
	}
	r, err := d.rotation()
	if err != nil {
		return nil, err
	}
	next, err := pki.LoadGossipKeys(d.file(nextDir, gossipFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return keys, nil
	case err != nil:
		return nil, err
	case r.Step == StepUse:
		return slices.Concat(next, keys), nil
	}
	return slices.Concat(keys, next), nil
}
