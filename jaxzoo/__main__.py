from jaxzoo.cli.commands import main

main()
