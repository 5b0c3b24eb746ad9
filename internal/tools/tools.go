// Package tools is a module of its own for the tools that the checks run, so
// that whoever imports zsync does not see them.
package tools
