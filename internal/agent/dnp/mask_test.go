package dnp

import (
	"os"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/chanmask"
)

// A request that changes nothing does not wait until a newer number is on disk, because that is not required.
func TestKeptMaskLacks(t *testing.T) {
	on := keptMask{state: chanmask.State{Own: chanmask.All, Held: 1, Ordered: chanmask.All, Number: 3}}
	renumbered, changed := on.state, on.state
	renumbered.Number, changed.Held = 7, 2
	failed := keptMask{state: on.state, err: os.ErrPermission}
	if on.lacks(on.state) || on.lacks(renumbered) || !on.lacks(changed) || !failed.lacks(on.state) {
		t.Errorf("same %t, renumbered %t, changed %t, not taken by the disk %t", on.lacks(on.state), on.lacks(renumbered), on.lacks(changed),
			failed.lacks(on.state))
	}
}
