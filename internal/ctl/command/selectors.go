package command

import (
	"math"

	"github.com/spf13/cobra"
)

// MaxEvents is the most that one answer of the supervisors holds.
const MaxEvents = 10000

// CheckLimit rejects a --limit above the maximum; 0 stands for the supervisors' default.
func CheckLimit(cmd *cobra.Command, limit uint) error {
	if limit > MaxEvents || limit > math.MaxUint32 || (limit == 0 && cmd.Flags().Changed("limit")) {
		return Usagef("--limit %d: want 1 to %d", limit, MaxEvents)
	}
	return nil
}

// Help texts about selectors.
const (
	labelSelectors = `
-l chooses by labels of nodes as kubectl does: rack=r7, power!=b, gpu, !spare, switch in (s1,s2), rack notin (r1).
--field-selector chooses by FIELD=VALUE or FIELD!=VALUE; several are separated by commas, and all must hold. `
	NodeSelectors = labelSelectors + `Fields:
id, coord, x, y, z, state, cause, region, group, maintenance, spare, inferred, unreachable.`
	LinkSelectors = labelSelectors + `Fields:
node, peer, direction, state, cause, region.`
	EventSelectors = labelSelectors + `Fields:
node, component, kind, from, to, cause, path, region, group. A group fault passes when one of its members would.`
)

// chunkSize is the default size of a page.
const chunkSize = 1000

// SelectFlags are the flags that filter a list.
type SelectFlags struct{ Labels, Fields string }

// AddSelectFlags adds them; example is a field selector that the command takes.
func AddSelectFlags(cmd *cobra.Command, f *SelectFlags, example string) {
	cmd.Flags().StringVarP(&f.Labels, "selector", "l", "", "only nodes with these labels, such as rack=r7,!spare, and their parts")
	cmd.Flags().StringVar(&f.Fields, "field-selector", "", "only objects with these fields, such as "+example)
}

// ListFlags are the flags of long lists.
type ListFlags struct {
	SelectFlags
	Chunk uint32
}

// AddListFlags adds the selectors and --limit to a list command.
func AddListFlags(cmd *cobra.Command, what, example string) *ListFlags {
	f := new(ListFlags)
	AddSelectFlags(cmd, &f.SelectFlags, example)
	cmd.Flags().Uint32Var(&f.Chunk, "limit", chunkSize, "how many "+what+" are fetched at once, all of one revision; 0: all. All are printed")
	return f
}
