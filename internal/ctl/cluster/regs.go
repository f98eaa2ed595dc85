package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"
)

// RegsCommand returns `lofamoctl regs`.
func RegsCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "regs NODE",
		Short: "A node's registers, decoded; also 'regs decode ADDRESS VALUE'",
		Long: `Prints the registers of a node, field by field, by address (seed 001, Tables III to VII).

In a local cluster the command reads all registers from the node's own register file without disturbing it: the Valid
bits are as the halves left them. For a node elsewhere it prints the three LO|FA|MO words that the node last sent to
the supervisors.`,
		Example:           "  lofamoctl regs 1,0,1\n  lofamoctl regs n1-0-1 -o json\n  lofamoctl regs decode 0xec0 0x00000041",
		Args:              command.Exactly("NODE (an id such as n1-0-1, or coordinates such as 1,0,1)"),
		ValidArgsFunction: a.CompleteFirstNode,
	}
	o := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if to, err := a.Access(); err != nil {
			return err
		} else if to.Server != "" {
			return remoteRegisters(a, cmd.Context(), args[0], o.Format)
		}
		c, err := a.Local("regs")
		if err != nil {
			return err
		}
		return localRegisters(a, cmd.Context(), c, args[0], o.Format)
	}
	cmd.AddCommand(regsDecodeCommand(a))
	return cmd
}

func regsDecodeCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "decode ADDRESS VALUE",
		Short: "Any raw register word, field by field; needs no cluster",
		Long: `Decodes a raw register word. ADDRESS and VALUE are 32-bit numbers, hexadecimal with 0x or decimal. If the register
cannot hold the value, the command prints the readable part and fails.

Registers:
` + registerHelp(),
		Example: "  lofamoctl regs decode 0xec0 0x00000041    neighbour X+ has lost its host\n  lofamoctl regs decode 0xf40 0xad          45 °C",
		Args:    command.Exactly("ADDRESS (such as 0xec0)", "VALUE (such as 0x00000041)"),
	}
	o := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		addr, err := parseWord("ADDRESS", args[0])
		if err != nil {
			return err
		}
		value, err := parseWord("VALUE", args[1])
		if err != nil {
			return err
		}
		r := watchdog.ReadWord(watchdog.Addr(addr), value)
		if r.Name == "" {
			_, ok := watchdog.Lookup(watchdog.Addr(addr))
			if !ok {
				return command.Usagef("ADDRESS %s: no register there: 'lofamoctl regs decode --help' lists them", args[0])
			}
		}
		if err := printRegisterList(a, []watchdog.Word{r}, o.Format); err != nil {
			return err
		}
		if r.Error != "" {
			return errors.New(r.Error)
		}
		return nil
	}
	return cmd
}

func registerHelp() string {
	var b strings.Builder
	for _, r := range watchdog.Registers() {
		fmt.Fprintf(&b, "  %s  mask 0x%08x  %s\n", r.Addr, r.Mask, r.Name)
	}
	return strings.TrimRight(b.String(), "\n")
}

func parseWord(what, s string) (uint32, error) {
	v, err := strconv.ParseUint(strings.ReplaceAll(s, "_", ""), 0, 32)
	if err != nil {
		return 0, command.Usagef("%s %q: want a number from 0 to 0xffffffff, hexadecimal with 0x or decimal", what, s)
	}
	return uint32(v), nil
}

// localRegisters reads the register file itself.
func localRegisters(a *command.App, ctx context.Context, c *cluster.Cluster, node string, f command.Format) error {
	n, err := nodeNow(ctx, c, node)
	if err != nil {
		return err
	}
	file, err := regfile.OpenReadOnly(c.RegisterFile(n))
	if err != nil {
		return fmt.Errorf("registers of node %s: %w", n.ID, err)
	}
	defer func() { _ = file.Close() }()
	var list []watchdog.Word
	for _, reg := range watchdog.Registers() {
		v, err := file.Load(reg.Addr)
		if err != nil {
			list = append(list, watchdog.UnreadWord(reg, err))
			continue
		}
		list = append(list, watchdog.ReadWord(reg.Addr, v))
	}
	if f == command.FormatTable {
		a.Printf("Registers of node %s, in %s\n", n.ID, file.Path())
		a.Printf("Boot epochs: host %s, dnp %s\n", command.Epoch(uint64(file.Epoch(fault.HalfHost))),
			command.Epoch(uint64(file.Epoch(fault.HalfDNP))))
	}
	return printRegisterList(a, list, f)
}

func remoteRegisters(a *command.App, ctx context.Context, node string, f command.Format) error {
	return a.WithClient(ctx, func(ctx context.Context, s command.Session) error {
		n, err := s.GetNode(ctx, node)
		if err != nil {
			return fmt.Errorf("registers of node %s: %w", node, command.Plain(err))
		}
		if n.GetRegisters() == nil {
			return fmt.Errorf("registers of node %s: the supervisors have received none since their leader took over", node)
		}
		list := command.NodeRegisters(n.GetRegisters())
		if f == command.FormatTable {
			a.Printf("Registers of node %s at %s, as last sent %s ago\n", n.GetId(), n.GetCoord(), command.ProtoDuration(n.GetRegisters().GetAge()))
		}
		return printRegisterList(a, list, f)
	})
}

func printRegisterList(a *command.App, list []watchdog.Word, f command.Format) error {
	if f != command.FormatTable {
		b, err := json.Marshal(list)
		if err != nil {
			return fmt.Errorf("print registers: %w", err)
		}
		return a.PrintJSON(f, b)
	}
	for _, r := range list {
		owner := ""
		if r.Owner != "" {
			owner = ", written by the " + r.Owner + " half"
		}
		a.Printf("\n%s  %s  %s%s\n", r.Address, command.Dash(r.Value), r.Name, owner)
		rows := make([][]string, 0, len(r.Fields))
		for _, fd := range r.Fields {
			rows = append(rows, []string{"  " + bitRange(fd.Bits), fd.Name, strconv.FormatUint(uint64(fd.Value), 10), fd.Text})
		}
		if err := a.Table(rows); err != nil {
			return err
		}
		if r.Error != "" {
			a.Printf("  invalid: %s\n", r.Error)
		}
	}
	return nil
}

func bitRange(b [2]int) string {
	if b[0] == b[1] {
		return fmt.Sprintf("bit %d", b[0])
	}
	return fmt.Sprintf("bits %d-%d", b[0], b[1])
}
