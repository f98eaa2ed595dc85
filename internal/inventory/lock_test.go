package inventory

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
)

// both runs a function twice at the same time.
func both(do func(i int) error) (errs [2]error) {
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	return errs
}

// TestRotationBesideUpdateLosesNoBundle: every bundle has the certificates of the same authority, in either order of the two commands.
func TestRotationBesideUpdateLosesNoBundle(t *testing.T) {
	d, inv := made(t)
	if _, err := d.Rotate(StepAdd, true); err != nil {
		t.Fatal(err)
	}
	inv.Spares = append(inv.Spares, Node{ID: "spare-1", Service: "10.9.9.9"})
	for i, err := range both(func(i int) (err error) {
		if i == 0 {
			_, err = Open(d.path).Update(inv)
		} else {
			_, err = Open(d.path).Rotate(StepUse, false)
		}
		return err
	}) {
		if err != nil {
			t.Fatalf("command %d: %v", i, err)
		}
	}
	if now, err := d.Inventory(); err != nil || !now.Has("spare-1") {
		t.Errorf("the inventory has lost the added spare: %v", err)
	}
	if _, err := d.Rotate(StepRemove, false); err != nil {
		t.Fatal(err)
	}
	for _, member := range []string{"nodes/spare-1", "nodes/n0-0-0", "supervisors/s1"} {
		if _, err := OpenBundle(filepath.Join(d.path, member)); err != nil {
			t.Errorf("%s: %v", member, err)
		}
	}
}

// TestChangesAtOnceKeepEachOther: each change begins with the inventory of the other one.
func TestChangesAtOnceKeepEachOther(t *testing.T) {
	d, _ := made(t)
	name := func(i int) string { return fmt.Sprintf("spare-%d", i) }
	for i, err := range both(func(i int) error {
		_, err := Open(d.path).Change(func(inv Inventory) (Inventory, error) {
			inv.Spares = append(inv.Spares, Node{ID: fault.NodeID(name(i)), Service: fmt.Sprintf("10.9.9.%d", i+1)})
			return inv, nil
		})
		return err
	}) {
		if err != nil {
			t.Fatalf("change %d: %v", i, err)
		}
	}
	inv, err := d.Inventory()
	if err != nil || !inv.Has(name(0)) || !inv.Has(name(1)) {
		t.Errorf("spares %v, %v: want both", inv.Spares, err)
	}
}

// TestOneOfTwoIssuesIsRefused: a name gets one certificate with its own key.
func TestOneOfTwoIssuesIsRefused(t *testing.T) {
	d, _ := made(t)
	for i := range 10 {
		name := fmt.Sprintf("p%d", i)
		errs := both(func(int) error { _, err := Open(d.path).Issue(pki.RoleViewer, name); return err })
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Errorf("two certificates for %s: %v: want one refused", name, errs)
		}
		base := d.file("operators", "viewer-"+name)
		if _, err := pki.LoadSigner(base+".pem", base+".key"); err != nil {
			t.Error(err)
		}
	}
}

// TestLockedDirectoryIsNamed: a command waits for another one for a while, and then fails.
func TestLockedDirectoryIsNamed(t *testing.T) {
	d, inv := made(t)
	unlock, err := d.lock()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		for name, do := range map[string]func() error{
			"init":   func() error { return d.Init(inv) },
			"update": func() error { _, err := d.Update(inv); return err },
			"rotate": func() error { _, err := d.Rotate(StepAdd, false); return err },
			"issue":  func() error { _, err := d.Issue(pki.RoleViewer, "anna"); return err },
		} {
			begin := time.Now()
			want := "operator's directory " + d.path + ": another command has been changing it for more than 15s"
			if err := do(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v: want %q", name, err, want)
			}
			if waited := time.Since(begin); waited < lockWait {
				t.Errorf("%s: waited %s: want %s", name, waited, lockWait)
			}
		}
	})
	unlock()
	if _, err := d.Update(inv); err != nil {
		t.Errorf("after the other command: %v", err)
	}
}
