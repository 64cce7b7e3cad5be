/* runtime/bin/ebbtide.c - the program: a command by its name (runtime/commands.h). */
#include "runtime/commands.h"

int main(int argc, char **argv)
{
    return command_main(argc, argv);
}
