package main

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/testing/docstest"
)

func TestCommandsOfThePages(t *testing.T) {
	docstest.Parses(t, "../..", "lofamo-supervisor", func() *cobra.Command { return command(nil) })
}
