package ctl

import "github.com/spf13/cobra"

// What the help texts say of selectors.
const (
	labelSelectors = `
-l chooses by labels of nodes as kubectl does: rack=r7, power!=b, gpu, !spare, switch in (s1,s2), rack notin (r1).
--field-selector chooses by FIELD=VALUE or FIELD!=VALUE; several are separated by commas, and all must hold. `
	nodeSelectors = labelSelectors + `Fields:
id, coord, x, y, z, state, cause, region, group, maintenance, spare, inferred, unreachable.`
	linkSelectors = labelSelectors + `Fields:
node, peer, direction, state, cause, region.`
	eventSelectors = labelSelectors + `Fields:
node, component, kind, from, to, cause, path, region, group. A group fault passes when one of its members would.`
)

// chunkSize is how many things are asked for at once unless told otherwise.
const chunkSize = 1000

// selectFlags choose among what there is.
type selectFlags struct{ labels, fields string }

// addSelectFlags adds them; example is a field selector that the command takes.
func addSelectFlags(cmd *cobra.Command, f *selectFlags, example string) {
	cmd.Flags().StringVarP(&f.labels, "selector", "l", "", "only what concerns nodes with such labels, as rack=r7,!spare")
	cmd.Flags().StringVar(&f.fields, "field-selector", "", "only those with such fields, as "+example)
}

// listFlags are those of lists that may be long.
type listFlags struct {
	selectFlags
	chunk uint32
}

func addListFlags(cmd *cobra.Command, what, example string) *listFlags {
	f := new(listFlags)
	addSelectFlags(cmd, &f.selectFlags, example)
	cmd.Flags().Uint32Var(&f.chunk, "limit", chunkSize, "how many "+what+" are fetched at once, all of one revision; 0: all. All are printed")
	return f
}
