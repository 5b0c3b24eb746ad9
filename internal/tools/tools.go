// Package tools is a module of its own for the tools of the checks. Programs that import zsync do not
// depend on it.
package tools
