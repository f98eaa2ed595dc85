package inventory

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
)

// Update brings the bundles up to date with an inventory: nodes added, removed or moved, or machines replaced (renew:
// their certificates are issued again). It returns the members with changes: all members after an update that failed.
func (d *Dir) Update(inv Inventory, renew ...string) ([]string, error) {
	return d.Change(func(Inventory) (Inventory, error) { return inv, nil }, renew...)
}

// Change calls plan with the stored inventory and applies the result as Update does. It holds the directory's lock throughout.
func (d *Dir) Change(plan func(former Inventory) (Inventory, error), renew ...string) ([]string, error) {
	unlock, err := d.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := d.wantWholeStep(); err != nil {
		return nil, err
	}
	old, err := d.Inventory()
	if err != nil {
		return nil, err
	}
	inv, err := plan(old)
	if err != nil {
		return nil, err
	}
	if old.Cluster != inv.Cluster {
		return nil, fmt.Errorf("cluster: given %s: want %s, whose authority is in %s", inv.Cluster, old.Cluster, d.path)
	}
	ca, err := d.authority()
	if err != nil {
		return nil, err
	}
	before, err := d.sums()
	if err != nil {
		return nil, err
	}
	// A replica's certificate names its addresses.
	moved := map[string]bool{}
	for _, s := range inv.Supervisors {
		moved[s.ID] = !slices.ContainsFunc(old.Supervisors, func(o Supervisor) bool { return o.ID == s.ID && o.Address == s.Address })
	}
	if exists(d.file(updateFile)) { // an update that failed did not report its changes
		before = nil
	}
	if err := replace(d.file(updateFile), nil, 0o600); err != nil {
		return nil, err
	}
	if err := d.write(inv, ca, func(id string) bool { return slices.Contains(renew, id) || moved[id] }); err != nil {
		return nil, err
	}
	changed, err := d.changed(before)
	if err != nil {
		return nil, err
	}
	return changed, os.Remove(d.file(updateFile))
}

// sums returns the contents of all bundles, by "nodes/ID", "supervisors/ID" and "executors/NAME".
func (d *Dir) sums() (map[string]string, error) {
	out := map[string]string{}
	for _, kind := range []string{nodesDir, supervisors, executorsDir} {
		err := fs.WalkDir(os.DirFS(d.path), kind, func(p string, e fs.DirEntry, err error) error {
			if p == kind && kind != supervisors && errors.Is(err, fs.ErrNotExist) { // a cluster may begin without nodes
				return nil
			}
			if err != nil || e.IsDir() {
				return err
			}
			b, err := os.ReadFile(d.file(p))
			parts := bytes.SplitN([]byte(p), []byte("/"), 3)
			member := kind + "/" + string(parts[1])
			out[member] += p + "\x00" + string(b) + "\x00"
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (d *Dir) changed(before map[string]string) ([]string, error) {
	now, err := d.sums()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, m := range slices.Sorted(maps.Keys(now)) {
		if now[m] != before[m] {
			out = append(out, m)
		}
	}
	return out, nil
}
